"""Operations of StyleGAN2's networks: convolutions, filters, layers, precision."""
