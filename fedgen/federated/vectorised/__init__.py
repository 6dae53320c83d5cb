"""Turns of many small clients taken at once, over stacked weights."""
