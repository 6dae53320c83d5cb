"""Three GANs without and with FID as a second loss."""
