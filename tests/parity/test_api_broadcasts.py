"""Ports whose arguments have fewer elements than the reference's, and broadcast to its shape."""

import nvtripy as tp
import torch

import parity

B, N, D = 24, 5, 4
GENERATOR = torch.Generator().manual_seed(3)
INPUTS = {
    "x": torch.randn(B, N, D, generator=GENERATOR),
    "known": torch.rand(B, N, generator=GENERATOR) < 0.7,
}


class Mix(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(D, D)

    def forward(self, x, mask):
        return self.out(torch.matmul(mask.to(x.dtype), x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = Mix()

    def forward(self, x, known):
        causal = torch.ones(N, N, device=x.device).tril().bool()
        return self.mix(x, causal & known[:, None])


class MixPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.out = tp.Linear(D, D, dtype=dtype)

    def forward(self, x, mask):
        return self.out(tp.cast(mask, x.dtype) @ x)


def causal():
    return tp.cast(tp.tril(tp.ones((1, N, N))), tp.bool)


class WithoutKnown(tp.Module):
    """The code before the module leaves a part of its mask out."""

    def __init__(self, dtype):
        super().__init__()
        self.mix = MixPort(dtype)

    def forward(self, x, known):
        return self.mix(x, causal())


class MixOfTwoMasks(MixPort):
    def forward(self, x, mask, known):
        numbers = tp.cast(mask, x.dtype) * tp.unsqueeze(tp.cast(known, x.dtype), 1)
        return self.out(numbers @ x)


class AddsKnown(tp.Module):
    """A right port: the module adds what its mask lacks, from an argument that the reference's has not."""

    def __init__(self, dtype):
        super().__init__()
        self.mix = MixOfTwoMasks(dtype)

    def forward(self, x, known):
        return self.mix(x, causal(), known)


def compare(port):
    return parity.compare(Model(), port, INPUTS, ("fp32",))


def test_a_mask_that_lacks_a_part_is_named_and_not_the_module_behind_it():
    text = " ".join(str(compare(WithoutKnown)).split())
    assert "mix receives another mask" in text, text
    assert "shape (1, 5, 5) in place of (24, 5, 5)" in text
    assert "the code of forward makes the argument" in text


def test_a_module_that_adds_what_its_mask_lacks_is_right():
    result = compare(AddsKnown)
    assert result.passed, result


class Raises(AddsKnown):
    def forward(self, x, known):
        return self.mix(x, causal(), known) & known


def test_an_error_of_the_whole_model_is_told_and_not_that_of_a_module_with_other_parameters():
    text = str(compare(Raises))
    assert "every module that runs on its own passes, and the run with taps raises TypeError" in text
    assert "operand" in text
    assert "required positional argument" not in text
