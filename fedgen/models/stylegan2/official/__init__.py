"""Networks from NVIDIA's official pickles, read without running anything in them."""
