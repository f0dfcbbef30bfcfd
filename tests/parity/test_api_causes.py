"""Causes in the code between modules, and modules that do not run alone, from `parity.compare`."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

D, ROWS, N = 8, 24, 6
RNG = np.random.default_rng(5)
INPUTS = {
    "x": RNG.standard_normal((ROWS, N, D)).astype(np.float32),
    "ids": RNG.integers(0, 40, (ROWS, N)),
}


class Pooled(torch.nn.Module):
    """Code between its modules bounds the ids, scales the rows, weighs and activates."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(30, D)
        self.score = torch.nn.Linear(D, 1)
        self.act = torch.nn.GELU("tanh")
        self.head = torch.nn.Linear(D, 3)

    def forward(self, x, ids):
        y = x + self.table(ids.clamp(0, 29)) * D**0.5
        weights = torch.softmax(self.score(y).squeeze(-1), -1)
        return torch.log_softmax(self.head(self.act((weights.unsqueeze(-1) * y).sum(1))), -1)


class PooledPort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.table = tp.Embedding(30, D, dtype=dtype)
        self.score = tp.Linear(D, 1, dtype=dtype)
        self.head = tp.Linear(D, 3, dtype=dtype)
        self.bug = bug

    def forward(self, x, ids):
        last = 28 if self.bug == "bound" else 29
        rows = self.table(tp.minimum(tp.maximum(ids, 0), last))
        y = x + (rows if self.bug == "factor" else rows * D**0.5)
        scores = tp.squeeze(self.score(y), -1)
        if self.bug == "bias":
            scores = scores - self.score.bias
        weights = tp.softmax(scores, dim=0 if self.bug == "axis" else 1)
        z = tp.sum(tp.unsqueeze(weights, -1) * y, 1)
        if self.bug == "noise":
            z = z + 0.01 * tp.sin(1000.0 * z)
        cubic = 0.7978845608028654 * (z + 0.044715 * z * z * z)
        z = tp.gelu(z) if self.bug == "gelu" else 0.5 * z * (1.0 + tp.tanh(cubic))
        logits = self.head(z)
        if self.bug == "log":
            return tp.softmax(logits, dim=-1)
        return logits - tp.log(tp.sum(tp.exp(logits), -1, keepdim=True))


def causes(bug):
    port = lambda dtype: PooledPort(dtype, bug)  # noqa: E731, a function as users write it
    text = str(parity.compare(Pooled(), port, INPUTS, ("fp32",), functional=("GELU",)))
    assert "FAIL" in text, text
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("cause:", "place:"))]


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ("bound", "with the constant 28 in place of 29 in clamp"),
        ("factor", "without the step times 2.82843"),
        ("axis", "with softmax over axis 0 in place of 1"),
        ("gelu", "with GELU by erf in place of tanh"),
        ("log", "with softmax in place of log_softmax"),
    ],
)
def test_an_error_between_modules_has_its_cause(bug, cause):
    told = causes(bug)
    assert told[0] == f"cause: fits the reference {cause}"
    assert not any(line.startswith("place:") for line in told)


def test_a_right_port_has_no_failure():
    assert parity.compare(Pooled(), PooledPort, INPUTS, functional=("GELU",)).passed


def test_an_unknown_error_has_places_and_no_cause():
    assert not any("fits" in line for line in causes("noise"))


class Centred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(D, D)
        self.second = torch.nn.Linear(D, D)

    def forward(self, x):
        return self.second(self.first(x))


class CentredPort(tp.Module):
    """Takes the bias off again behind a module that is right."""

    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(D, D, dtype=dtype)
        self.second = tp.Linear(D, D, dtype=dtype)

    def forward(self, x):
        return self.second(self.first(x) - self.first.bias)


def test_the_code_of_a_right_module_is_not_the_cause():
    text = str(parity.compare(Centred(), CentredPort, {"x": INPUTS["x"][:, 0]}, ("fp32",)))
    assert "second receives another" in text
    assert "without the bias" not in text


class WeightPort(tp.Module):
    """Takes the weight of a layer that it does not call, and forgets its bias."""

    def __init__(self, dtype, layer, bias=False):
        super().__init__()
        self.first = tp.Linear(D, D, dtype=dtype)
        self.second = tp.Linear(D, D, dtype=dtype)
        self.layer, self.bias = layer, bias

    def forward(self, x):
        for layer in (self.first, self.second):
            if layer is getattr(self, self.layer):
                x = x @ tp.transpose(layer.weight, 0, 1)
                x = x + layer.bias if self.bias else x
            else:
                x = layer(x)
        return x


@pytest.mark.parametrize("layer", ["first", "second"])
def test_a_layer_whose_weight_alone_is_used_lacks_its_bias(layer):
    port = lambda dtype: WeightPort(dtype, layer)  # noqa: E731, a function as users write it
    inputs = {"x": INPUTS["x"][:, 0]}
    text = str(parity.compare(Centred(), port, inputs, ("fp32",)))
    assert f"where: {layer}: missing: the port never calls {layer}" in text
    assert "cause: fits the reference without the bias of addmm" in text


def test_a_layer_whose_weight_and_bias_are_used_is_right():
    port = lambda dtype: WeightPort(dtype, "first", bias=True)  # noqa: E731
    result = parity.compare(Centred(), port, {"x": INPUTS["x"][:, 0]}, ("fp32",))
    assert result.passed, result
    assert "note: first (Linear): the reference alone makes this call" in str(result)


class Masked(torch.nn.Module):
    def forward(self, x, padding):
        return x.masked_fill(padding.unsqueeze(-1) < 0, 0.0) * 3.0


class Turning(torch.nn.Module):
    """Turns the mask into numbers before its module, as PyTorch's encoder layer does."""

    def __init__(self):
        super().__init__()
        self.masked = Masked()
        self.head = torch.nn.Linear(D, 2)

    def forward(self, x, padding):
        numbers = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, float("-inf"))
        return self.head(self.masked(x, numbers))


class MaskedPort(tp.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, padding):
        return tp.masked_fill(x, tp.unsqueeze(padding, -1), 0.0) * self.factor


class TurningPort(tp.Module):
    def __init__(self, dtype, factor=3.0):
        super().__init__()
        self.masked = MaskedPort(factor)
        self.head = tp.Linear(D, 2, dtype=dtype)

    def forward(self, x, padding):
        return self.head(self.masked(x, padding))


PADDED = {"x": INPUTS["x"], "padding": RNG.random((ROWS, N)) < 0.4}


def test_a_module_with_another_form_of_mask_is_judged_inside_the_model():
    result = parity.compare(Turning(), TurningPort, PADDED, ("fp32",))
    assert result.passed, result
    masked = modules(result)["masked"]
    assert set(masked.verdicts) == {"in the model"}
    words = "does not run with the reference's arguments, padding: bool in place of float32"
    assert any(words in note for note in masked.notes)


def test_a_wrong_module_with_another_form_of_mask_fails():
    text = str(parity.compare(Turning(), lambda dtype: TurningPort(dtype, 3.1), PADDED, ("fp32",)))
    assert "FAIL at masked" in text


class NamedPort(tp.Module):
    def forward(self, x, hidden):
        return tp.masked_fill(x, tp.unsqueeze(hidden, -1), 0.0) * 3.0


class NamingPort(tp.Module):
    """An argument of the module has another name, and another place."""

    def __init__(self, dtype):
        super().__init__()
        self.masked = NamedPort()
        self.head = tp.Linear(D, 2, dtype=dtype)

    def forward(self, x, padding):
        return self.head(self.masked(x, padding))


class Naming(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.masked = Hiding()
        self.head = torch.nn.Linear(D, 2)

    def forward(self, x, padding):
        return self.head(self.masked(x, padding=padding))


class Hiding(torch.nn.Module):
    def forward(self, x, weights=None, padding=None):
        return x.masked_fill(padding.unsqueeze(-1), 0.0) * 3.0


def test_a_module_whose_arguments_have_other_names_is_judged_inside_the_model():
    result = parity.compare(Naming(), NamingPort, PADDED, ("fp32",))
    assert result.passed, result
    masked = modules(result)["masked"]
    assert set(masked.verdicts) == {"in the model"}
    assert any("padding has the name hidden" in note for note in masked.notes), masked.notes
    (line,) = (line for line in str(result).splitlines() if "note: masked" in line)
    assert line.startswith("    note: masked (Hiding): judged inside the model alone: ")
    assert line.endswith("padding has the name hidden")


class Upsampled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(2, 3, 2, stride=2)

    def forward(self, image):
        return torch.relu(self.up(image))


class UpsampledPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.up = tp.ConvTranspose(2, 3, (2, 2), stride=(2, 2), dtype=dtype)

    def forward(self, image):
        return tp.relu(self.up(image))


def test_a_module_that_tripy_refuses_is_named_with_what_tripy_expects():
    images = {"image": RNG.standard_normal((4, 2, 5, 4)).astype(np.float32)}
    text = str(parity.compare(Upsampled(), UpsampledPort, images, ("bf16",)))
    assert "bf16 FAIL at up" in text
    assert "up (ConvTranspose2d) does not run on its own" in text
    assert "to be one of [float32, float16] (but it was 'bfloat16')" in text
    assert "no module of this path" not in text


class Attending(torch.nn.Module):
    """PyTorch's attention returns None in the place of its weights."""

    def __init__(self):
        super().__init__()
        self.attn = torch.nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class Attention(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.in_proj_weight = tp.zeros((3 * D, D), dtype=dtype)
        self.in_proj_bias = tp.zeros((3 * D,), dtype=dtype)
        self.out_proj = tp.Linear(D, D, dtype=dtype)

    def forward(self, x):
        joined = x @ tp.transpose(self.in_proj_weight, 0, 1) + self.in_proj_bias
        heads = tp.reshape(joined, (joined.shape[0], N, 3, 2, D // 2))
        q, k, v = (tp.squeeze(part, 0) for part in tp.split(tp.permute(heads, (2, 0, 3, 1, 4)), 3, dim=0))
        weights = tp.softmax(q @ tp.transpose(k, 2, 3) / (D / 2) ** 0.5, dim=-1)
        return self.out_proj(tp.reshape(tp.transpose(weights @ v, 1, 2), (joined.shape[0], N, D)))


class AttendingPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.attn = Attention(dtype)

    def forward(self, x):
        return self.attn(x)


def test_an_operation_that_returns_none_beside_a_tensor_is_sampled():
    result = parity.compare(Attending(), AttendingPort, {"x": INPUTS["x"]})
    assert result.passed, result
