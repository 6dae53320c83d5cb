"""Wasserstein distances: by trained critics, and sliced."""
