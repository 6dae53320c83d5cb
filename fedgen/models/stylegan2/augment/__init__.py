"""Adaptive augmentation of StyleGAN2-ADA."""
