"""StyleGAN2 and its adaptive discriminator augmentation, from the formulas, in plain PyTorch."""
