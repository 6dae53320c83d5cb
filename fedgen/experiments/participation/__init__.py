"""Experiments on clients that never train: the gap to those that do, and what it depends on."""
