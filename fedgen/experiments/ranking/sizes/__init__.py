"""Gaps between avg and all that come of few images, and a published table read again."""
