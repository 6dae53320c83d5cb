"""Costs of privacy: scores from noised messages, and generators trained with noise."""
