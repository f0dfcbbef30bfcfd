"""Arithmetic of the entry itself, outside of all modules."""

from __future__ import annotations

import nvtripy as tp
import pytest
import torch

import parity

IDS, WIDTH = 7, 300
INPUTS = {
    "ids": torch.arange(40) % IDS,
    "factors": torch.linspace(-3, 3, 40 * WIDTH).reshape(40, WIDTH),
}


class Lookup(torch.nn.Module):
    """The only module moves data; the entry multiplies and adds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(IDS, WIDTH)

    def forward(self, ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return (self.table(ids) * factors).sum(-1)


class LookupPort(tp.Module):
    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.table = tp.Embedding(IDS, WIDTH, dtype=dtype)

    def forward(self, ids: tp.Tensor, factors: tp.Tensor) -> tp.Tensor:
        products = self.table(ids) * factors
        # Another order of the same sum.
        return tp.sum(products[:, ::2], dim=-1) + tp.sum(products[:, 1::2], dim=-1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_entrys_own_sums_set_the_limit_of_its_outputs(precision):
    result = parity.compare(Lookup(), LookupPort, INPUTS, (precision,))
    assert result.passed, str(result)


class Gather(torch.nn.Module):
    """The entry only moves data."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(IDS, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).flip(1)[:, 1:]


class GatherPort(tp.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.table = tp.Embedding(IDS, WIDTH)

    def forward(self, ids: tp.Tensor) -> tp.Tensor:
        return tp.flip(self.table(ids), 1)[:, 1:] * self.scale


@pytest.mark.parametrize(("scale", "passes"), [(1.0, True), (1.0 + 2**-23, False)])
def test_an_entry_that_only_moves_data_is_equal_to_the_bit(scale, passes):
    result = parity.compare(Gather(), GatherPort(scale), {"ids": INPUTS["ids"]}, ("fp32",))
    assert result.passed is passes


class Counting(torch.nn.Linear):
    """The result depends on the number of earlier calls."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Moving(torch.nn.Linear):
    """A mean that each call moves."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(sizes[1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y - self.mean


class Noisy(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand(5, device=x.device)


class Harmless(torch.nn.Linear):
    """Random numbers without an effect."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.rand(5, device=x.device) * 0


class Plain(tp.Linear):
    """A linear layer alone."""


@pytest.mark.parametrize("kind", [Counting, Moving, Noisy])
def test_a_reference_that_is_no_function_of_its_inputs_judges_no_port(kind):
    model = kind(WIDTH, 5)
    inputs = {"x": INPUTS["factors"]}
    with pytest.raises(parity.UserError, match="reference: .* in a second run on the same inputs"):
        parity.compare(model, Plain(WIDTH, 5), inputs, ("fp32",), unused=("mean",) * (kind is Moving))


def test_random_numbers_without_an_effect_do_not_matter():
    result = parity.compare(Harmless(WIDTH, 5), Plain(WIDTH, 5), {"x": INPUTS["factors"]}, ("fp32",))
    assert result.passed, str(result)


class Inside(torch.nn.Module):
    """Its module is checked, and the entry loses the result to rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) + 1e9) - 1e9


class Negative(Inside):
    """The entry's result is zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(-torch.relu(self.layer(x)) - 1)


class InsidePort(tp.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = tp.Linear(WIDTH, 5)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.layer(x) * 0.0


def test_an_output_that_is_lost_to_rounding_is_no_pass():
    text = str(parity.compare(Inside(), InsidePort(), {"x": INPUTS["factors"]}, ("fp32",)))
    assert "INSENSITIVE" in text
    assert "forward.output: rounding may be as large as the result, so that nearly any result would" in text
    assert "would fail" not in text


def test_an_output_of_zeros_is_no_loss():
    result = parity.compare(Negative(), InsidePort(), {"x": INPUTS["factors"]}, ("fp32",))
    assert result.passed, str(result)


def _traced(model: torch.nn.Module) -> torch.nn.Module:
    return torch.jit.trace(model, INPUTS["factors"])


def _lazy(model: torch.nn.Module) -> torch.nn.Module:
    model.layer = torch.nn.LazyLinear(5)
    return model


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (_traced, "is a ScriptModule; give the Python model that it was made from"),
        (torch.compile, "is the model in OptimizedModule; give its `_orig_mod`"),
        (torch.nn.DataParallel, "is the model in DataParallel; give its `module`"),
        (_lazy, "has no shape of layer.weight yet; call the model once before"),
        (lambda model: model.to("meta"), "has no values of layer.weight, which is on the device meta"),
    ],
)
@pytest.mark.parametrize("is_built", [False, True])
def test_a_reference_that_is_no_plain_module_is_refused(changed, message, is_built):
    model = changed(Inside())
    with pytest.raises(parity.UserError) as refused:
        parity.compare(
            (lambda: model) if is_built else model, InsidePort(), {"x": INPUTS["factors"]}, ("fp32",)
        )
    assert message in str(refused.value)
