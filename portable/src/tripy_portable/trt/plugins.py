"""Graphs with plugins, which cannot be built: TensorRT-RTX has no layer for them."""

from __future__ import annotations

from collections import Counter

from tripy_portable.program import Program


class NoPlugins(Exception):
    """The graph calls plugins, and the library has no layer for them; the message names both."""


def refuse_plugins(program: Program, library: str) -> None:
    """Stops before a graph is translated that has operations without a counterpart.

    Raises:
        NoPlugins: where the program calls a plugin.
    """
    calls = Counter(
        f"{node.attrs['namespace']}::{node.attrs['name']}"
        for node in program.nodes
        if node.op == "opaque_plugin"
    )
    if calls:
        named = ", ".join(f"{name} ({count} times)" for name, count in calls.items())
        raise NoPlugins(f"the graph calls plugins, for which {library} has no layer: {named}")
