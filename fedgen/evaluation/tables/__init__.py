"""Scores and partitions as tables and sentences, for terminals and notebooks."""
