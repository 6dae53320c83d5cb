"""Autoencoders: one that trains over clients, and the latent space of one that is frozen."""
