"""Aggregators: how the server combines what clients send back."""
