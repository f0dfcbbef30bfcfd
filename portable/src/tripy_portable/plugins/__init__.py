"""Quickly deployable plugins: what `tensorrt.plugin` registers, and how a graph's operation finds it."""
