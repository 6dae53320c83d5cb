"""Files: atomic writers, checked readers, tensors and archives from strangers."""
