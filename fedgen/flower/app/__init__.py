"""The Flower app of a recipe: written, configured and started."""
