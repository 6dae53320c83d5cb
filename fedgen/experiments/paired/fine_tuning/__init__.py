"""A trained generator fine-tuned on FID alone."""
