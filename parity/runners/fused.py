"""What the runners of fused attention share: which cases they run, and which modules they have not."""

from __future__ import annotations

from cases.hstu.case import HSTUFamily
from cases.hstu.fused import HSTU_FUSED_FAMILY
from cases.stu.case import STUFamily
from cases.stu.fused import STU_FUSED_FAMILY
from configs import CaseConfig
from parity.runners.base import Unavailable

_INSIDE = "computed inside the fused attention, never as a tensor"
FUSED: dict[str, str] = dict.fromkeys(
    ("RelativeBucketedTimeAndPositionBasedBias", "AttentionMask", "STUAttentionMask"), _INSIDE
)
"""Classes of the dense references, each with the reason."""

FUSED_RUNNERS = ("torch_fused", "tripy_jagged")
"""The runners that this is true of."""

_FUSED_FAMILIES = {HSTUFamily.name: HSTU_FUSED_FAMILY, STUFamily.name: STU_FUSED_FAMILY}


def as_fused(case: CaseConfig) -> CaseConfig:
    """The case as one of the family whose attention is fused.

    Raises:
        Unavailable: where the kernel does not compute the case's attention.
    """
    if case.family not in _FUSED_FAMILIES:
        raise Unavailable(
            "fused attention is of research HSTU and the production STU, "
            f"and {case.name} is a case of {case.family}"
        )
    fused = _FUSED_FAMILIES[case.family]
    try:
        fused.require_fused(case.model)
    except ValueError as error:
        raise Unavailable(str(error)) from error
    return case.model_copy(update={"family": fused.name})
