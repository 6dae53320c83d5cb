"""A client on its own machine: its data, turns, answers and policy."""
