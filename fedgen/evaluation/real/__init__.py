"""The clients' real images: splits, embeddings, and each score's references, computed once."""
