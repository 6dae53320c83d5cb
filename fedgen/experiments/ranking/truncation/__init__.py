"""Clients and generators made by one StyleGAN2 at rising truncation."""
