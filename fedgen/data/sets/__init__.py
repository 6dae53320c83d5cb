"""Data sets by name: without a download, small images, images that tables list, pickled batches."""
