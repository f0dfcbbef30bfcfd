"""State dicts, settings and batches that do not fit are refused with the field, its value and the fix."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from kernels.hstu_forward import GraphedHSTUForward, HSTUForward
from tests.kernels.hstu_forward.forward_cases import settings_of, small_model
from tests.kernels.marks import DEVICE, needs_gpu, needs_triton

pytestmark = needs_triton


def made(**changes: object) -> HSTUForward:
    config, model = small_model()
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    return HSTUForward(state | changes, settings_of(config, model))


def batch() -> dict[str, torch.Tensor]:
    """Two sequences of 30 and 20 rows."""
    return {
        "ids": torch.ones(50, dtype=torch.int64, device=DEVICE),
        "offsets": torch.tensor([0, 30, 50], device=DEVICE),
        "timestamps": torch.zeros(2, 51, dtype=torch.int64, device=DEVICE),
    }


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, every second element of a tensor."""
    return torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0]


BATCHES = [
    ("ids", strided, "ids="),
    ("ids", torch.Tensor.float, "ids="),
    ("ids", lambda x: x[None], "ids="),
    ("offsets", strided, "offsets="),
    ("offsets", torch.Tensor.float, "offsets="),
    ("offsets", lambda x: x[:0], "offsets="),
    ("timestamps", strided, "timestamps.stride()="),
    ("timestamps", torch.Tensor.int, "timestamps="),
    ("timestamps", torch.Tensor.float, "timestamps="),
    ("timestamps", lambda x: x[0], "timestamps"),
    ("timestamps", lambda x: x[:1], "timestamps"),
]


@pytest.mark.parametrize(("name", "change", "message"), BATCHES)
def test_a_tensor_of_a_batch_that_does_not_fit_is_named(name, change, message):
    given = batch()
    given[name] = change(given[name])
    forward = made()
    with pytest.raises(ValueError, match=re.escape(message)):
        forward(*given.values(), 30)
    cache, firsts = forward.empty_cache(2, 51), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match=re.escape(message)):
        forward.extend(cache, given["ids"], given["offsets"], firsts, given["timestamps"], 30, 30)


@pytest.mark.parametrize("longest", [-1, 30.0, None])
def test_the_longest_row_is_a_whole_number(longest):
    with pytest.raises(ValueError, match="max_seq_len=.*whole number"):
        made()(*batch().values(), longest)


@needs_gpu
@pytest.mark.parametrize("name", ["ids", "offsets", "timestamps"])
def test_a_tensor_on_another_device_is_named(name):
    given = batch()
    given[name] = given[name].cpu()
    with pytest.raises(ValueError, match=f"{name}.device='cpu': must be the model's, cuda"):
        made()(*given.values(), 30)


def test_a_step_that_does_not_fit_its_cache_is_refused_before_anything_runs():
    forward, (ids, offsets, times) = made(), batch().values()
    cache, firsts = forward.empty_cache(2, 51), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match=r"firsts=\(1,\): must be \(2,\)"):
        forward.extend(cache, ids, offsets, firsts[:1], times, 30, 30)
    with pytest.raises(ValueError, match="max_new=31: must be a whole number from 0 to max_seq_len=30"):
        forward.extend(cache, ids, offsets, firsts, times, 30, 31)
    with pytest.raises(ValueError, match="batch_size=0"):
        forward.empty_cache(0, 51)
    with pytest.raises(ValueError, match="batch_size=-1"):
        GraphedHSTUForward(forward, -1, 50, 30, 51)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("divisor", 0),
        ("bucket_divisor", 0.0),
        ("num_heads", 0),
        ("epsilon", -1.0),
        ("l2_epsilon", float("nan")),
    ],
)
def test_settings_out_of_range_are_named(field, value):
    config, model = small_model()
    with pytest.raises(ValueError, match=f"settings.{field}="):
        HSTUForward(dict(model.state_dict()), replace(settings_of(config, model), **{field: value}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.Tensor.half, "torch.float16 on .*; use the items' torch.float32"),
        (lambda x: x.to("meta"), "torch.float32 on meta; use the items' torch.float32"),
        (lambda x: x.clone().requires_grad_(), "requires a gradient, but the kernels have no backward"),
    ],
)
def test_a_parameter_unlike_the_items_is_named(change, message):
    _, model = small_model()
    name = next(name for name in model.state_dict() if name.endswith("_uvqk"))
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        made(**{name: change(model.state_dict()[name].to(DEVICE))})


def test_float64_parameters_are_refused():
    config, model = small_model()
    with pytest.raises(ValueError, match="_item_emb.weight: torch.float64; use float32, float16 or bfloat16"):
        HSTUForward({k: v.double() for k, v in model.state_dict().items()}, settings_of(config, model))
