"""What the runners of fused attention share: which cases they run, and which modules they have not."""

from __future__ import annotations

from configs import CaseConfig
from parity.families.hstu import HSTUFamily
from parity.families.hstu_fused import HSTUFusedFamily
from parity.runners.base import Unavailable

FUSED: dict[str, str] = {
    "RelativeBucketedTimeAndPositionBasedBias": "computed inside the fused attention, never as a tensor",
    "AttentionMask": "computed inside the fused attention, never as a tensor",
}
"""Classes of the dense reference, each with the reason."""

FUSED_RUNNERS = ("torch_fused", "tripy_jagged")
"""The runners that this is true of."""


def as_fused(case: CaseConfig) -> CaseConfig:
    """The case as one of this family.

    Raises:
        Unavailable: where the kernel does not compute the case's attention.
    """
    if case.family != HSTUFamily.name:
        raise Unavailable(f"fused attention is of research HSTU, and {case.name} is a case of {case.family}")
    from reference.hstu_fused import require_fused

    try:
        require_fused(case.model.normalization, case.model.relative_attention_bias)
    except ValueError as error:
        raise Unavailable(str(error)) from error
    return case.model_copy(update={"family": HSTUFusedFamily.name})
