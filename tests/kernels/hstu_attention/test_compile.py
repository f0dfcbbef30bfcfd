"""The kernels compile for GPUs that are not here, and ask for no more shared memory than these have."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import GENERATIONS, assert_compiles_and_fits
from tests.kernels.marks import needs_triton


@needs_triton
@pytest.mark.parametrize("capability", GENERATIONS)
def test_every_form_of_attention_compiles_and_fits(capability):
    assert_compiles_and_fits("tests.kernels.hstu_attention.compile_all", capability, forms=12)
