"""Generators that nothing but FID holds to their images."""
