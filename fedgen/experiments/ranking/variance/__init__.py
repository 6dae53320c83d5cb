"""Clients of little variance and generators of more and more."""
