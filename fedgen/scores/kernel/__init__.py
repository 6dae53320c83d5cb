"""Squared maximum mean discrepancy (KID): kernels, pooled and per client, errors."""
