"""Partitions by what images look like in an embedding: nearest neighbours, and clusters within labels."""
