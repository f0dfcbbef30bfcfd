"""The number of terms of an operation's longest sum."""

from parity.capture.terms.operations import LEAST_SUM, Terms, terms

__all__ = ["LEAST_SUM", "Terms", "terms"]
