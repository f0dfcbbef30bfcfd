"""Quickly deployable plugins: their registration, and their lookup by a graph's operation."""
