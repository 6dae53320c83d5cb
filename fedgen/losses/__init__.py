"""The scores as training objectives."""
