"""A verdict on the outputs alone holds no taps, and is the one that a run with taps gives."""

import pytest
import torch

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.verdict.comparison import compare
from parity.verdict.evidence import Results

CASE = "dlrmv3_tiny"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_verdict_is_that_of_a_run_with_taps(precision):
    case = load_case(CASE)
    runs = [
        CleanRun(case, PRECISIONS[precision], isolated=False, outputs_alone=alone) for alone in (False, True)
    ]
    with_taps, alone = (run.evidence for run in runs)
    assert set(with_taps.boundary) == set(alone.boundary)
    kept = {tap for tap in alone.reference.tensors if tap in alone.kinds}
    assert {alone.kinds[tap].kind for tap in kept} <= set(case.boundaries())
    assert len(kept) < len(with_taps.reference.tensors) / 4

    (tap,) = set(alone.reference.tensors) - kept
    assert torch.equal(with_taps.oracle[tap], alone.oracle[tap])
    for change, status in ((1.0, "PASS"), (1.25, "FAIL")):
        port = Results({tap: alone.reference.tensors[tap] * change}, taps_modules=False, appends=False)
        one, other = (compare(evidence, port).taps[0].accumulated for evidence in (with_taps, alone))
        assert one.status == other.status == status
        assert (one.reason, one.limit) == (other.reason, other.limit)
