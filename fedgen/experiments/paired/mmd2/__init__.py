"""A StyleGAN2 fine-tuned by MMD^2 towards clients who keep their images."""
