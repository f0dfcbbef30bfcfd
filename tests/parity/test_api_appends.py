"""Models with a cache whose port passes a wrong argument in an append: the call and the code are named."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

B, N, D = 24, 4, 6


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(D, D)

    def forward(self, x, state, count):
        return torch.tanh(self.mix(x) + state) / count.unsqueeze(1).to(x.dtype)


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = Step()

    def forward(self, x, state, count):
        return self.step(x, state, count + 1), count + 1


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.head = torch.nn.Linear(D, 3)

    def prefill(self, x, first, count):
        state = first
        for place in range(x.shape[1]):
            state, count = self.cell(x[:, place], state, count)
        return {"state": state, "count": count}

    def extend(self, cache, x):
        state, count = self.cell(x, cache["state"], cache["count"])
        return self.head(state), {"state": state, "count": count}

    def forward(self, x, first, count):
        cache = self.prefill(x[:, :-1], first, count)
        return self.extend(cache, x[:, -1])[0]


class StepPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.mix = tp.Linear(D, D, dtype=dtype)

    def forward(self, x, state, count):
        return tp.tanh(self.mix(x) + state) / tp.cast(tp.unsqueeze(count, 1), x.dtype)


class CellPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.step = StepPort(dtype)

    def forward(self, x, state, count):
        return self.step(x, state, count + 1), count + 1


class Port(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.cell = CellPort(dtype)
        self.head = tp.Linear(D, 3, dtype=dtype)
        self.bug = bug

    def prefill(self, x, first, count):
        state = first
        for place in range(N - 1):
            state, count = self.cell(x[:, place], state, count)
        return {"state": state, "count": count}

    def forward(self, x, first, count):
        cache = self.prefill(x[:, : N - 1], first, count)
        return self.head(self.cell(x[:, N - 1], cache["state"], cache["count"])[0])

    def extend(self, cache, x):
        state, count = cache["state"], cache["count"]
        if self.bug == "count":
            count = count + 1
        if self.bug == "state":
            state = state * 1.5
        state, count = self.cell(x, state, count)
        output = self.head(state)
        return output * 1.01 if self.bug == "output" else output, {"state": state, "count": count}


class Cached(parity.Case):
    name = "cached"
    batch_size = B
    incremental_outputs = {"incremental.output": "forward.output"}

    def __init__(self, bug=""):
        self.bug = bug

    def build_reference(self):
        return Model()

    def build_port(self, dtype):
        return Port(dtype, self.bug)

    def rows(self, arrays, rows):
        return None

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        x, first = (rng.standard_normal(shape, np.float32) for shape in ((B, N, D), (B, D)))
        return {"x": x, "first": first, "count": np.resize(np.arange(3), B)}

    def incremental_arguments(self, arrays):
        before = {"x": arrays["x"][:, :-1], "first": arrays["first"], "count": arrays["count"]}
        return [before, {"x": arrays["x"][:, -1]}]

    def prefill(self, model, **arguments):
        return model.prefill(**arguments)

    def extend(self, model, cache, x):
        output, cache = model.extend(cache, x)
        return (output,), cache

    def unflatten_cache(self, tensors):
        return {name.strip("[]"): tensor for name, tensor in tensors.items()}


def told(bug):
    return parity.check(Cached(bug), precisions=("fp32",))


@pytest.mark.parametrize(
    ("bug", "call"),
    [
        ("count", "append:cell@3 receives another count: 24 of 24 elements"),
        ("state", "append:cell@3 receives another state: "),
    ],
)
def test_a_wrong_argument_of_an_append_is_named_with_its_code(bug, call):
    result = told(bug)
    assert not result.passed
    text = str(result)
    assert call in text, text
    assert "the code of prefill or extend makes the argument; so incremental.output: relative" in text


def test_a_wrong_output_behind_right_calls_is_named_alone():
    assert told("").passed
    text = str(told("output"))
    assert "incremental.output: relative L2 error" in text
    assert "receives another" not in text
