"""`parity.compare` on wrong ports whose modules take other arguments than PyTorch's: place and cause."""

import numpy as np
import nvtripy as tp
import torch

import parity

D, ROWS, N = 8, 24, 6
RNG = np.random.default_rng(5)
INPUTS = {
    "x": RNG.standard_normal((ROWS, N, D)).astype(np.float32),
    "mask": np.arange(N) < RNG.integers(1, N + 1, (ROWS, 1)),
}


class Attention(torch.nn.Module):
    """Attention whose query, key and value may differ."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(D, D)

    def forward(self, query, key, value, mask):
        scores = query @ self.mix(key).transpose(1, 2) / D**0.5
        return torch.softmax(scores.masked_fill(~mask[:, None], -1e4), -1) @ value


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.head = torch.nn.Linear(D, 3)

    def forward(self, x, mask):
        return self.head(self.attention(x, x, x, mask))


class Joined(Model):
    """Attention to a tensor whose values are no other argument."""

    def forward(self, x, mask):
        return self.head(self.attention(x, x, torch.tanh(x), mask))


class AttentionPort(tp.Module):
    """Attention of a tensor to itself, with a bias in place of a mask."""

    def __init__(self, dtype, bug):
        super().__init__()
        self.bug = bug
        self.mix = tp.Linear(D, D, dtype=dtype)

    def forward(self, x, bias):
        key = self.mix(x * 1.5 if self.bug == "key" else x)
        scores = x @ tp.transpose(key, 1, 2)
        scores = scores if self.bug == "scale" else scores / D**0.5
        return tp.softmax(scores + bias, dim=2) @ x


class ModelPort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.bug = bug
        self.attention = AttentionPort(dtype, bug)
        self.head = tp.Linear(D, 3, dtype=dtype)

    def forward(self, x, mask):
        seen = tp.cast(mask, x.dtype)
        bias = tp.unsqueeze((seen - 1.0) * 1e4, 1)
        return self.head(self.attention(x, bias * 0.0 if self.bug == "bias" else bias))


def judged(bug="", reference=Model):
    port = lambda dtype: ModelPort(dtype, bug)  # noqa: E731, a function as users write it
    return parity.compare(reference(), port, INPUTS, ("fp32",))


def test_a_right_port_with_another_signature_passes():
    assert judged().passed, judged()


def test_a_module_that_does_not_run_alone_has_its_cause():
    text = str(judged("scale"))
    assert "FAIL at attention\n" in text
    assert "where: attention (Attention): relative" in text
    # Both undo the missing division; a GPU's rounding decides which of them fits best.
    fits = "with the result of bmm times 2.82843 = sqrt(8)", "without the step divided by 2.82843"
    assert any(f"cause: fits the reference {fit}" in text for fit in fits)


def test_an_argument_that_is_not_compared_may_be_the_wrong_one():
    text = str(judged("bias"))
    assert "FAIL at attention\n" in text
    assert "; attention takes mask in another form or not at all, which is not compared" in text
    # A caller has no choice of the arguments that a module takes.
    assert "makes the argument" not in text


def test_a_wrong_argument_inside_tells_what_its_code_receives_unseen():
    text = str(judged("key"))
    assert "FAIL at attention.mix\n" in text
    assert "the code of attention makes the argument; attention takes mask in another form" in text


def test_a_tensor_that_is_no_other_argument_is_not_compared():
    text = str(judged(reference=Joined))
    assert "attention takes value, mask in another form or not at all" in text
