"""Arguments of the production layers that do not fit are refused before anything is written."""

from __future__ import annotations

import re

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask
from kernels.stu_layer import (
    Parameters,
    Sizes,
    empty_cache,
    extend_stu_layers,
    stu_gate,
    stu_layers,
    stu_norm,
)
from kernels.stu_layer.parameters import shapes_of
from tests.kernels.marks import needs_triton

SIZES = Sizes(2, 16, 16)
LAYER = Parameters(**{name: torch.ones(shape) for name, shape in shapes_of(SIZES, 32).items()})
X, OFFSETS = torch.ones(10, 32), torch.tensor([0, 4, 10])
MASK = ProductionMask(0.25, 10.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": None}, "mask='NoneType': must be a ProductionMask"),
        ({"mask": ResearchMask(torch.ones(19), 10.0)}, "mask='ResearchMask': must be a ProductionMask"),
        ({"layers": LAYER}, "layers='Parameters': give a sequence"),
        ({"layers": []}, "layers='list'"),
        ({"sizes": Sizes(0, 16, 16)}, "sizes.num_heads=0: must be at least 1"),
    ],
)
def test_layers_name_what_does_not_fit(changes, message):
    given = {"mask": MASK, "layers": [LAYER], "sizes": SIZES, **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        stu_layers(X, OFFSETS, 6, given["mask"], given["layers"], given["sizes"], backend="eager")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"firsts": torch.zeros(2)}, "firsts=('torch.float32'"),
        ({"firsts": torch.zeros(2, dtype=torch.int64, device="meta")}, "firsts=('torch.int64', 'meta'"),
        ({"offsets": OFFSETS.float()}, "offsets=('torch.float32'"),
        ({"mask": ProductionMask(0.25, 10.0, max_attn_len=-1)}, "mask.max_attn_len=-1"),
        ({"mask": ProductionMask(0.25, 10.0, num_targets=OFFSETS)}, "mask.num_targets.shape=(3,)"),
        ({"max_new": 6.0}, "max_new=6.0: must be a whole number"),
    ],
)
def test_new_rows_name_what_does_not_fit_and_leave_the_cache_alone(changes, message):
    given = {"offsets": OFFSETS, "firsts": torch.zeros(2, dtype=torch.int64), "max_new": 6, "mask": MASK}
    offsets, firsts, max_new, mask = (given | changes).values()
    cache = empty_cache(X, 1, 2, 6, SIZES)
    with pytest.raises(ValueError, match=re.escape(message)):
        extend_stu_layers(X, offsets, firsts, 6, max_new, mask, [LAYER], SIZES, cache, backend="eager")
    assert not bool(cache.kept[0].any())


def test_a_cache_has_whole_numbers():
    with pytest.raises(ValueError, match=r"capacity=2.5: must be a whole number"):
        empty_cache(X, 1, 1, 2.5, SIZES)


@pytest.mark.parametrize("eps", [-1.0, float("nan")])
def test_epsilon_is_at_least_zero(eps):
    weight = torch.ones(32)
    with pytest.raises(ValueError, match="eps="):
        stu_norm(X, weight, weight, eps, backend="eager")
    with pytest.raises(ValueError, match="eps="):
        stu_gate(X, X, weight, weight, eps=eps, backend="eager")


@needs_triton
def test_norm_and_gate_refuse_gradients():
    weight, x = torch.ones(32), X.clone().requires_grad_()
    for run in (lambda: stu_norm(x, weight, weight), lambda: stu_gate(x, x, weight, weight)):
        with pytest.raises(RuntimeError, match=r"no backward|needs CUDA tensors"):
            run()
