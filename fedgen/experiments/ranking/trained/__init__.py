"""Checkpoints of federated trainings as generators, beside ones that are perfect for a class."""
