"""Lightning's side of a round: loops, schedules, callbacks, checkpoints, and its internals."""
