"""Audits of trained models: what they tell of the images that they were trained on."""
