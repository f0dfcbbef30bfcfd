"""The kernels of the forward compile for GPUs that this machine lacks, within their shared memory."""

from __future__ import annotations

from tests.kernels.compiling import FORMS, assert_compiles_and_fits
from tests.kernels.marks import needs_triton


@needs_triton
@FORMS
def test_every_form_of_the_forward_compiles_and_fits(capability, only_last):
    kernels, last = (5, 1) if only_last else (66, 0)
    assert_compiles_and_fits("tests.kernels.hstu_forward.compile_all", capability, kernels, last)
