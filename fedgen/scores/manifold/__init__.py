"""Precision, recall, density, coverage and memorisation, from nearest neighbours."""
