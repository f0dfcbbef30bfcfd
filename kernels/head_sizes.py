"""Sizes of attention heads that the fused kernel takes. Needs nothing but Python."""

LARGEST_HEAD = 256
"""Largest number of elements of a head (K or V)."""
