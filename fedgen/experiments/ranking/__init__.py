"""Experiments on how avg and all over clients order the same generators, beside controls over IID clients."""
