"""Factors of a tf32 product are rounded to the nearest tf32 number, where tensor cores would cut them.

Every sequence has one row, so that a result is silu(q k) v and nothing is summed. With q, k and v rounded to
tf32's 11 significant bits, q k and w v have 22 and are exact in float32. What remains is w: the kernel's
SiLU is a few units of 2^-24 off, and its rounding to 11 bits is known unless it lies next to the middle of
two tf32 numbers; such rows are left out. So the result is known to the bit. In the interpreter a product
has all bits of its factors, and a factor that is not rounded is seen there as well.
"""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention import ProductionMask
from tests.kernels.hstu_attention.attention_cases import with_fault
from tests.kernels.marks import DEVICE, needs_triton

pytestmark = needs_triton

ROWS, HEAD = 64, 16
DROPPED = 13
"""Bits of float32's 23 that tf32 lacks."""
NEAR = 64
"""Units in float32's last place around a middle: far more than a float32 SiLU is off."""
MASK = ProductionMask(alpha=1.0, divisor=1.0)
FACTORS = ("q", "k", "v", "weights")


def rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 to the nearest tf32, a tie away from zero."""
    return ((x.view(torch.int32) + (1 << (DROPPED - 1))) >> DROPPED << DROPPED).view(torch.float32)


def cut(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) >> DROPPED << DROPPED).view(torch.float32)


def inputs() -> dict[str, torch.Tensor]:
    """One element a row, of both signs; every low bit may be set."""
    generator = torch.Generator().manual_seed(0)
    return {name: 3 * torch.randn(ROWS, generator=generator) for name in ("q", "k", "v")}


def expected(inputs: dict[str, torch.Tensor], how: dict[str, object]) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(q k) v with factors narrowed as `how` says, and which rows are known to the bit."""
    q, k, v = (how[name](inputs[name]) for name in ("q", "k", "v"))
    logits = q.double() * k.double()
    weights = (logits * logits.sigmoid()).float()
    low = weights.view(torch.int32) & ((1 << DROPPED) - 1)
    middle, whole = 1 << (DROPPED - 1), 1 << DROPPED
    # Next to a tf32 number a cut is as uncertain as a rounding is next to a middle.
    known = ((low - middle).abs() > NEAR) & (low > NEAR) & (low < whole - NEAR)
    return how["weights"](weights) * v, known


def computed(launcher, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    def tensor(name: str) -> torch.Tensor:
        spread = torch.zeros(ROWS, 1, HEAD)
        # q k is one product, and only one element of a result is not zero.
        spread[:, 0, 3] = inputs[name]
        return spread.to(DEVICE)

    offsets = torch.arange(ROWS + 1, device=DEVICE)
    out = launcher.launch(tensor("q"), tensor("k"), tensor("v"), offsets, 1, MASK, "tf32").cpu()
    assert torch.equal(out[:, 0, 4:], torch.zeros(ROWS, HEAD - 4))
    return out[:, 0, 3]


def test_factors_are_rounded_to_nearest():
    from kernels.hstu_attention import triton_launch

    values = inputs()
    wanted, known = expected(values, dict.fromkeys(FACTORS, rounded))
    assert int(known.sum()) > ROWS // 2
    assert torch.equal(computed(triton_launch, values)[known], wanted[known])


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_that_is_cut_would_be_seen(factor):
    values = inputs()
    wanted, known = expected(values, dict.fromkeys(FACTORS, rounded))
    wrong, _ = expected(values, dict.fromkeys(FACTORS, rounded) | {factor: cut})
    # Rounding and cutting differ for half of all numbers.
    assert float((wrong != wanted)[known].float().mean()) > 0.25


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_that_is_left_to_the_tensor_cores_is_seen(factor, tmp_path, monkeypatch):
    source = f"{factor} = as_tf32({factor})"
    launcher = with_fault(source, f"{factor} = {factor}", tmp_path, monkeypatch)
    values = inputs()
    wanted, known = expected(values, dict.fromkeys(FACTORS, rounded))
    assert not torch.equal(computed(launcher, values)[known], wanted[known])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays(value):
    from kernels.hstu_attention import triton_launch

    # A NaN of all ones, as GPUs make it, would become a zero if it were rounded as a number.
    odd = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32) if value != value else value
    values = inputs()
    values["v"][7] = odd
    result = computed(triton_launch, values)
    assert bool(result[7].isnan()) if value != value else bool(result[7].isinf())
    assert bool(result[8:].isfinite().all())
