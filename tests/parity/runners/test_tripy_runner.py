"""The port under Tripy: its weights, its arithmetic, and the cache that goes from step to step."""

import dataclasses

import numpy as np
import nvtripy as tp
import pytest
import torch
from tripy_portable.runtime.options import TF32, Options

from parity.base.precision import PRECISIONS
from parity.case import ModelPair
from parity.runners import make_runner
from parity.runners.tripy.runner import TripyRunner
from tripy_port.parameters import parameter

WIDTH = 3


class Weighted(torch.nn.Module):
    """Square, oblong and flat parameters, and buffers of other types."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.square = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=draw))
        self.oblong = torch.nn.Parameter(torch.randn(2, WIDTH, generator=draw))
        self.flat = torch.nn.Parameter(torch.randn(WIDTH, generator=draw))
        self.register_buffer("mask", torch.ones(WIDTH, WIDTH, dtype=torch.bool).triu(1))
        self.register_buffer("ids", torch.arange(5, 5 + WIDTH))

    def forward(self, x):
        return x @ self.square + self.flat


class WeightedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.square = parameter((WIDTH, WIDTH), dtype)
        self.oblong = parameter((2, WIDTH), dtype)
        self.flat = parameter((WIDTH,), dtype)
        self.mask = parameter((WIDTH, WIDTH), tp.bool)
        self.ids = parameter((WIDTH,), tp.int64)

    def forward(self, x):
        return x @ self.square + self.flat


INPUTS = {"x": np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)}


def loaded(precision):
    """The runner of the weighted port, and the reference's weights."""
    case, runner = ModelPair(Weighted, WeightedPort, INPUTS), TripyRunner()
    weights = case.build_reference().state_dict()
    runner.load(case, precision, weights)
    return runner, weights


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_the_port_gets_every_tensor_in_its_shape_type_and_values(name):
    precision = PRECISIONS[name]
    runner, weights = loaded(precision)
    state = {key: torch.from_dlpack(tensor) for key, tensor in runner.model.state_dict().items()}
    assert state.keys() == weights.keys()
    for key, tensor in weights.items():
        expected = tensor.to(precision.dtype) if tensor.is_floating_point() else tensor
        assert state[key].dtype == expected.dtype
        assert torch.equal(state[key], expected)


class Passing(torch.nn.Module):
    def forward(self, x, ids):
        return x * 1.0, ids + 0


class PassingPort(tp.Module):
    def forward(self, x, ids):
        return x * 1.0, ids + 0


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_inputs_and_results_have_all_their_digits_on_the_way(name):
    precision = PRECISIONS[name]
    limits = torch.finfo(precision.dtype)
    values = [1.0 + limits.eps, limits.max / 2.0, limits.tiny * 3.0, -1.0 / 3.0]
    inputs = {"x": np.array(values, np.float32), "ids": np.array([0, -1, 2**31 - 1, 2**40 + 1])}
    runner = TripyRunner()
    runner.load(ModelPair(Passing, PassingPort, inputs), precision, {})
    for results in (runner.run(inputs), runner.run_tapped(inputs).tensors):
        assert torch.equal(results["forward.0"], torch.tensor(values).to(precision.dtype))
        assert results["forward.1"].tolist() == inputs["ids"].tolist()


def test_products_are_rounded_to_tf32_in_that_precision_alone(monkeypatch):
    monkeypatch.setenv(TF32, "0")
    for name in ("tf32", "fp32", "tf32", "fp16"):
        loaded(dataclasses.replace(PRECISIONS[name], needs_cuda=False))
        assert Options.from_environment().allow_tf32 is (name == "tf32")


class Decaying(torch.nn.Module):
    """The state halves at each step: every step's place in the order counts."""

    def forward(self, x, state):
        return x + 0.5 * state


class DecayingPort(tp.Module):
    def forward(self, x, state):
        return x + 0.5 * state


class Appending(ModelPair):
    """Steps of `Decaying`, one row of `x` a step; the cache is the last result."""

    incremental_outputs = {"incremental.state": "forward.output"}
    appends = 3

    def incremental_arguments(self, arrays):
        if not self.appends:
            return None
        return [{"x": arrays["x"][step]} for step in range(1 + self.appends)]

    def prefill(self, model, x):
        return {"state": x + 0.0}

    def extend(self, model, cache, x):
        state = model(x, cache["state"])
        # A result and a cache differ in their names alone, as the judged tensor is the result.
        return (state,), {"state": state + 0.0}

    def unflatten_cache(self, tensors):
        (state,) = tensors.values()
        return {"state": state}


@pytest.mark.parametrize("name", ["torch", "tripy"])
@pytest.mark.parametrize("appends", [0, 1, 2, 3])
def test_each_append_continues_from_the_one_before_and_the_last_is_the_result(name, appends):
    x = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    case = Appending(Decaying, DecayingPort, {"x": x, "state": x})
    case.appends = appends
    runner = make_runner(name)
    runner.load(case, PRECISIONS["fp32"], {})
    results = runner.run_incremental({"x": x, "state": x})
    expected = sum(0.5 ** (appends - step) * x[step] for step in range(1 + appends))
    assert list(results) == (["incremental.state"] if appends else [])
    for state in results.values():
        assert state.tolist() == expected.tolist()


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Weighted()

    def forward(self, x):
        return self.part(x)


class WholePort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.part = WeightedPort(dtype)
        self.wrapped = []

    def forward(self, x):
        self.wrapped.append("forward" in vars(self.part))
        return self.part(x)


def test_only_a_tapped_trace_wraps_modules():
    case, runner = ModelPair(Whole, WholePort, INPUTS), TripyRunner()
    runner.load(case, PRECISIONS["fp32"], case.build_reference().state_dict())
    plain = runner.run(INPUTS)
    tapped = runner.run_tapped(INPUTS)
    assert runner.model.wrapped == [False, True]
    assert "part" in tapped.tensors
    assert all(torch.equal(tapped.tensors[name], plain[name]) for name in plain)


class Scaling(torch.nn.Module):
    def forward(self, x, factor):
        return x * factor


class ScalingPort(tp.Module):
    def __init__(self):
        super().__init__()
        self.traces = []

    def forward(self, x, factor):
        self.traces.append((tuple(x.trace_tensor.shape), factor))
        return x * float(factor)


class Rescaling(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        parts = [self.part(x, 2), self.part(x + 1.0, 2), self.part(x[:2], 2), self.part(x, 3)]
        return torch.cat(parts)


class RescalingPort(tp.Module):
    def __init__(self):
        super().__init__()
        self.part = ScalingPort()

    def forward(self, x):
        parts = [self.part(x, 2), self.part(x + 1.0, 2), self.part(x[:2], 2), self.part(x, 3)]
        return tp.concatenate(parts, dim=0)


def test_calls_of_a_module_share_a_graph_where_their_arguments_have_the_same_sizes_and_values():
    inputs = {"x": np.arange(12.0, dtype=np.float32).reshape(4, WIDTH)}
    case = ModelPair(lambda: Rescaling(Scaling()), RescalingPort, inputs)
    reference, port = make_runner("torch"), TripyRunner()
    for runner in (reference, port):
        runner.load(case, PRECISIONS["fp32"], {})
    recorded = reference.record(inputs)
    alone = {}
    for call in recorded.calls:
        if call.path == "part":
            alone |= port.run_call(call, recorded.call_inputs, inputs)
    assert port.model.part.traces == [((4, WIDTH), 2), ((2, WIDTH), 2), ((4, WIDTH), 3)]
    assert list(alone) == ["part", "part@1", "part@2", "part@3"]
    assert all(torch.equal(tensor, recorded.tensors[tap]) for tap, tensor in alone.items())


@pytest.mark.parametrize("name", ["torch", "tripy"])
def test_the_calls_of_all_steps_are_recorded_in_their_order(name):
    x = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    case = Appending(Holding, HoldingPort, {"x": x, "state": x})
    runner = make_runner(name)
    runner.load(case, PRECISIONS["fp32"], {})
    capture = runner.run_appending({"x": x, "state": x})
    # The prefill of this case calls no module; each of three appends calls one, by its method.
    calls = ["append:part", "append:part@1", "append:part@2"]
    assert list(capture.arguments) == calls
    for step, call in enumerate(calls, start=1):
        named = {own.name: own for own in capture.arguments[call].arguments}
        assert capture.argument(named["x"]).tolist() == x[step].tolist()
    case.appends = 0
    assert not runner.run_appending({"x": x, "state": x}).arguments


class Part(Decaying):
    def cached_forward(self, x, state):
        return self.forward(x, state)


class PartPort(DecayingPort):
    def cached_forward(self, x, state):
        return self.forward(x, state)


class Holding(torch.nn.Module):
    """A model whose part is called by its method for cached states."""

    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x, state):
        return self.part.cached_forward(x, state)


class HoldingPort(tp.Module):
    def __init__(self):
        super().__init__()
        self.part = PartPort()

    def forward(self, x, state):
        return self.part.cached_forward(x, state)
