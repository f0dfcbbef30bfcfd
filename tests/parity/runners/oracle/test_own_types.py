"""Rounding samples of modules whose reference asks for float32 by itself, in a run of a half type."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.precision import PRECISIONS
from parity.runners.oracle.own_types import OwnTypes
from parity.runners.oracle.rounding import Errors, OtherOperations
from parity.runners.oracle.sampling import rounding_samples

HALF = ("fp16", "bf16")


def recorded(run, *tensors):
    with torch.inference_mode(), OwnTypes() as types:
        run(*tensors)
    return [(name, dtype) for name, _, dtype in types.results]


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


X = torch.linspace(0.1, 3.0, 24).reshape(4, 6)
F16, F32 = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: x * 3.0, [("mul", F16)]),
        (lambda x: wide(x) * 3.0, [("mul", F32)]),
        # The last result in float32 is rounded where it is cast, also behind a view, a copy or a join.
        (lambda x: (wide(x).exp() * 3.0).to(x.dtype), [("exp", F32), ("mul", F16)]),
        (lambda x: (wide(x) * 3.0).t().contiguous().to(x.dtype) + 1.0, [("mul", F16), ("add", F16)]),
        (lambda x: torch.cat([wide(x) * 3.0, wide(x).exp()]).to(x.dtype), [("mul", F16), ("exp", F16)]),
        (lambda x: x.clone().copy_(wide(x) * 3.0), [("mul", F16)]),
        # Only what is cast.
        (lambda x: [part.to(x.dtype) for part in [wide(x).exp() * 3.0]], [("exp", F32), ("mul", F16)]),
    ],
)
def test_the_types_of_results(run, expected):
    assert recorded(run, X.to(F16)) == expected


def _sampled(run, own, precision="fp16"):
    exact = X.double()
    results = rounding_samples(
        lambda: exact, lambda x: {"y": run(x)}, ["y"], PRECISIONS[precision], 32, exact.nbytes, own_types=own
    )
    return float(((results["y"] - run(exact)) / run(exact)).square().mean().sqrt())


@pytest.mark.parametrize("precision", HALF)
def test_steps_in_float32_have_errors_of_float32(precision):
    unit = PRECISIONS[precision].unit_roundoff
    dtype = PRECISIONS[precision].dtype

    def run(x):
        return wide(x).exp() * 3.0

    with torch.inference_mode(), OwnTypes() as types:
        run(X.to(dtype))
    assert _sampled(run, None, precision) > unit / 4
    assert _sampled(run, types.results, precision) < 4 * PRECISIONS["fp32"].unit_roundoff


def test_a_pass_of_other_operations_is_an_error():
    """One result too few, or of another name or shape."""
    unit = PRECISIONS["fp16"].unit_roundoff
    right = [("exp", X.shape, F32), ("mul", X.shape, F32)]
    assert _sampled(lambda x: x.exp() * 3.0, right) < unit / 100
    for other in (right[:1], [right[1], right[0]], [right[0], ("mul", torch.Size((6, 4)), F32)]):
        with pytest.raises(OtherOperations):
            _sampled(lambda x: x.exp() * 3.0, other)


def test_a_missing_result_is_an_error():
    errors = Errors(PRECISIONS["fp16"], 0, own_types=[])
    errors.take_type(torch.ones(3, dtype=torch.int64), "add")
    with pytest.raises(OtherOperations, match="exp of .4, 6. in place of None"):
        errors.take_type(X.double(), "exp")


def test_float32_of_the_oracle_itself_is_passed_over():
    """`x.float()` is float32 in the oracle, too, which has errors in samples of choices alone."""

    def run(x):
        return wide(x.float() * 3.0 + x).exp().to(x.dtype) * 1.5

    own = [("mul", X.shape, F32), ("add", X.shape, F32), ("exp", X.shape, F16), ("mul", X.shape, F16)]
    with torch.inference_mode(), OwnTypes() as types:
        run(X.to(F16))
    assert [*types.results] == own
    assert _sampled(run, own) > PRECISIONS["fp16"].unit_roundoff / 4
    # A type too few is noticed, so that the four are taken.
    narrow = [*own[:2], ("exp", X.shape, F32), ("mul", X.shape, F32)]
    assert _sampled(run, narrow) < PRECISIONS["fp16"].unit_roundoff / 100


class Rotary(torch.nn.Module):
    """Angles of position times frequency, in float32 by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = torch.promote_types(x.dtype, torch.float32)
        position = torch.arange(x.shape[1], dtype=kind, device=x.device)[:, None]
        angle = position * torch.linspace(1.0, 0.1, x.shape[2], dtype=kind, device=x.device)
        return (x.to(kind) * torch.cos(angle)).to(x.dtype)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary, self.last = Rotary(), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.rotary(x))


class RotaryPort(tp.Module):
    def __init__(self, kind: tp.dtype | None) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        kind = self._kind or x.dtype
        position = tp.cast(tp.iota((150, 1), dim=0, dtype=tp.float32), kind)
        frequency = tp.cast(tp.Tensor(np.linspace(1.0, 0.1, 8, dtype=np.float32)[None]), kind)
        return tp.cast(tp.cast(x, kind) * tp.cos(position * frequency), x.dtype)


class Port(tp.Module):
    def __init__(self, dtype: tp.dtype, kind: tp.dtype | None) -> None:
        super().__init__()
        self.rotary, self.last = RotaryPort(kind), tp.Linear(8, 4, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.last(self.rotary(x))


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("kind", [tp.float32, None])
def test_angles_in_a_half_type_fail_at_their_module(precision, kind):
    x = {"x": np.random.default_rng(0).standard_normal((6, 150, 8)).astype(np.float32)}
    result = parity.compare(Model(), lambda dtype: Port(dtype, kind), x, (precision,))
    if kind is None:
        assert f"{precision} FAIL at rotary" in str(result)
    else:
        result.raise_if_failed()
