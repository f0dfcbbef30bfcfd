"""The coarsest type that results of a module are rounded to, and the bound that follows from it."""

from __future__ import annotations

import json

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.capture.longest_sums import LongestSums
from parity.capture.store import open_capture, save_capture
from parity.verdict.evidence import Evidence

HALF = ("fp16", "bf16")
X = torch.linspace(0.1, 3.0, 24).reshape(4, 6)
HALF_X = X.half()


@pytest.mark.parametrize(
    ("run", "coarsest"),
    [
        (lambda x: x * 3.0, torch.float16),
        (lambda x: x.float() * 3.0, torch.float32),
        (lambda x: x.double() * x, torch.float64),
        (lambda x: (x.float() * 3.0).exp() + x, torch.float32),
        (lambda x: x.sum(dtype=torch.float32), torch.float32),
        # Rounded by the cast, whatever follows.
        (lambda x: (x.float() * 3.0).to(x.dtype), torch.float16),
        (lambda x: (x.float() * 3.0).bfloat16().float() + 1.0, torch.bfloat16),
        (lambda x: x.clone().copy_(x.float() * 3.0), torch.float16),
        (lambda x: torch.stack([x.float() * 3.0, x.float()]).to(x.dtype), torch.float16),
        (lambda x: torch.view_as_complex(x.float().reshape(-1, 2)) * 2.0, torch.float32),
        # Only moved, or no floating-point number.
        (lambda x: x.t().contiguous().float(), None),
        (lambda x: x.argmax(), None),
        (lambda x: torch.arange(3) + 1, None),
    ],
)
def test_the_coarsest_type_of_results_with_a_rounding(run, coarsest):
    with torch.inference_mode(), LongestSums() as sums:
        sums.enter("outer")
        sums.enter("inner")
        run(HALF_X)
        sums.leave()
        (X * 2.0).half()
        sums.leave()
    assert sums.coarsest.get("inner") is coarsest
    assert sums.coarsest["outer"] is (torch.bfloat16 if coarsest is torch.bfloat16 else torch.float16)


def test_captures_keep_the_types(tmp_path):
    types = {"a": torch.float32, "b": torch.bfloat16}
    save_capture(Capture(coarsest_types=types), tmp_path / "run/tapped")
    assert open_capture(tmp_path / "run/tapped").coarsest_types == types
    path = tmp_path / "run/tapped.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"coarsest_types": {"a": "int8"}}))
    with pytest.raises(UserError, match="is missing or damaged"):
        open_capture(tmp_path / "run/tapped")


def test_an_appending_call_may_have_a_coarser_type():
    full = Capture(coarsest_types={"a": torch.float32, "b": torch.float16})
    full.add_appending(Capture(coarsest_types={"a": torch.float16, "b": torch.float32, "c": torch.float32}))
    assert full.coarsest_types == {"a": torch.float16, "b": torch.float16, "c": torch.float32}


@pytest.mark.parametrize(
    ("precision", "coarsest", "expected"),
    [
        ("bf16", torch.float32, "fp32"),
        ("fp16", torch.float64, "fp32"),
        ("bf16", torch.float16, "bf16"),
        ("bf16", None, "bf16"),
        ("fp32", torch.float64, "fp32"),
        ("tf32", torch.float32, "tf32"),
    ],
)
def test_modules_in_float32_alone_have_its_round_off(precision, coarsest, expected):
    reference = Capture(
        calls=[ModuleCall("a", "a", "A", [], {}, ("a",))],
        longest_sums={"a": 1},
        coarsest_types={} if coarsest is None else {"a": coarsest},
    )
    evidence = Evidence(PRECISIONS[precision], "forward", reference, {}, {}, {}, {}, {}, 1)
    assert evidence.precision_alone(reference.calls[0]) is PRECISIONS[expected]


class Norm(torch.nn.Module):
    """Divides by the root mean square, in float32 in a run of any type, and returns float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = Norm(), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x).to(x.dtype))


class NormPort(tp.Module):
    def __init__(self, is_right: bool) -> None:
        super().__init__()
        self._is_right = is_right

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        wide = tp.cast(x, tp.float32) if self._is_right else x
        scale = tp.rsqrt(tp.mean(wide * wide, dim=-1, keepdim=True) + tp.cast(tp.Tensor(1e-5), wide.dtype))
        return tp.cast(wide * scale, tp.float32)


class Port(tp.Module):
    def __init__(self, dtype: tp.dtype, is_right: bool) -> None:
        super().__init__()
        self._dtype = dtype
        self.norm, self.last = NormPort(is_right), tp.Linear(8, 4, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.last(tp.cast(self.norm(x), self._dtype))


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_float32_result_of_half_arithmetic_fails_at_its_module(precision, is_right):
    x = {"x": np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)}
    result = parity.compare(Model(), lambda dtype: Port(dtype, is_right), x, (precision,))
    if is_right:
        result.raise_if_failed()
    else:
        assert f"{precision} FAIL at norm" in str(result)
