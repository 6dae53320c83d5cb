"""Networks of images and texts: prompts, and a UNet that is asked by them."""
