"""Experiments that train the same recipe with and without a change, over paired seeds."""
