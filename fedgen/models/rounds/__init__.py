"""Rounds as a model sees them: its own clock, and means over the clients' turns."""
