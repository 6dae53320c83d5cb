"""Generative adversarial networks: one core, its games and their checks."""
