"""Clusters of images within labels, of which semantic partitions make clients."""
