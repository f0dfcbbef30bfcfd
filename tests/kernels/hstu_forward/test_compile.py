"""The kernels of the forward compile for GPUs that this machine lacks, within their shared memory."""

from __future__ import annotations

import pytest

from tests.kernels.compiling import GENERATIONS, assert_compiles_and_fits
from tests.kernels.marks import needs_triton


@needs_triton
@pytest.mark.parametrize("capability", GENERATIONS)
def test_every_form_of_the_forward_compiles_and_fits(capability):
    assert_compiles_and_fits("tests.kernels.hstu_forward.compile_all", capability, forms=27)
