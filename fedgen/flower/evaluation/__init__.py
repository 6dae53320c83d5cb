"""The scores of a federation whose clients answer for themselves: one by one, in sums, or with noise."""
