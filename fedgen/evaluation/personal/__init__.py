"""Scores of models that are single clients' own: personal tensors, local fine-tuning, one client each."""
