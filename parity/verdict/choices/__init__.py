"""Choices of the port: which ones rounding explains, and the evidence under them."""
