"""Clients and generators that hold a class each, made without training."""
