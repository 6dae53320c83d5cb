"""Pretrained generators trained on scores of their images, alone or towards clients."""
