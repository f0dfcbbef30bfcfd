"""The kernels compile for GPUs that are not here, and ask for no more shared memory than these have."""

from __future__ import annotations

from tests.kernels.compiling import FORMS, assert_compiles_and_fits
from tests.kernels.marks import needs_triton


@needs_triton
@FORMS
def test_every_form_of_attention_compiles_and_fits(capability, only_last):
    # One form, with contextual rows and without, is for compute capability 9.0 alone.
    kernels, last = (8, 2) if only_last else (26 if capability == 90 else 18, 0)
    assert_compiles_and_fits("tests.kernels.hstu_attention.compile_all", capability, kernels, last)
