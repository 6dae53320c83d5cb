"""Generated images, and what a model says of real ones: drawn once, the same for the same seed and round."""
