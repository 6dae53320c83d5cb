"""Sums under secure aggregation: the server learns a sum and no summand."""
