"""Recipes: where they lie, how they are read, what they become, and what is wrong with them."""
