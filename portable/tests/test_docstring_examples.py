"""Every code example in nvtripy's docstrings runs, and its assertions hold."""

import nvtripy as tp
import pytest
from docstrings import examples, run

from tripy_portable.diagnostics import UnsupportedOperation

EXAMPLES = examples()


def test_examples_are_found():
    assert len(EXAMPLES) > 150


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.needs_plugins], ids=lambda e: e.name)
def test_example(example, capsys):
    run(example)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.needs_plugins], ids=lambda e: e.name)
def test_example_with_a_native_plugin_raises(example):
    with pytest.raises(
        (UnsupportedOperation, tp.TripyException),
        match="native TensorRT code|TensorRT engines|native packages",
    ):
        run(example)
