"""Audits of trained models: what they reveal of the images that they were trained on."""
