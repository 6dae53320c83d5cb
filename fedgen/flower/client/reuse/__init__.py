"""Parts that a client makes once for all messages of a run."""
