"""Readers of the formats that images are stored in: folders, manifests, tables."""
