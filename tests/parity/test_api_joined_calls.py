"""Live models whose port joins two calls of a shared module into one, or splits one call into two."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

USERS = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
ITEMS = torch.randn(24, 5, 8, generator=torch.Generator().manual_seed(2))
INPUTS = {"users": USERS, "items": ITEMS}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.out = torch.nn.Linear(8, 6)

    def forward(self, x):
        return torch.tanh(self.out(self.norm(x)))


class Apart(torch.nn.Module):
    """Calls the encoder for users, then for items."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, users, items):
        return (self.encoder(users).unsqueeze(1) * self.encoder(items)).sum(2)


class Joined(Apart):
    """Calls the encoder once, for both."""

    def forward(self, users, items):
        both = self.encoder(torch.cat([users.unsqueeze(1), items], 1))
        return (both[:, :1] * both[:, 1:]).sum(2)


class EncoderPort(tp.Module):
    def __init__(self, dtype, bug, rank):
        super().__init__()
        self.norm = tp.LayerNorm(8, dtype=dtype)
        self.out = tp.Linear(8, 6, dtype=dtype)
        self.bug = bug
        self.rank = rank

    def forward(self, x):
        if self.rank and x.rank != self.rank:
            raise ValueError(f"{x.rank} axes")
        y = self.out(self.norm(x))
        return tp.sigmoid(y) if self.bug == "encoder" else tp.tanh(y)


class ApartPort(tp.Module):
    def __init__(self, dtype, bug="", rank=0):
        super().__init__()
        self.encoder = EncoderPort(dtype, bug, rank)
        self.bug = bug

    def forward(self, users, items):
        if self.bug == "input":
            users = users * 1.5
        return self.scores(tp.unsqueeze(self.encoder(users), 1), self.encoder(items))

    def scores(self, users, items):
        return tp.sum(users * (items + 0.1 if self.bug == "scores" else items), dim=2)


class JoinedPort(ApartPort):
    def forward(self, users, items):
        if self.bug == "input":
            users = users * 1.5
        both = self.encoder(tp.concatenate([tp.unsqueeze(users, 1), items], dim=1))
        return self.scores(both[:, :1], both[:, 1:])


SIDES = pytest.mark.parametrize(
    ("reference", "port", "counts"),
    [
        (Apart, JoinedPort, "the port calls encoder once, the reference 2 times"),
        (Joined, ApartPort, "the port calls encoder 2 times, the reference once"),
    ],
)


def compared(reference, port, **bug):
    return parity.compare(reference(), lambda dtype: port(dtype, **bug), INPUTS, ("fp32",))


@SIDES
def test_a_right_port_passes_with_a_note_of_both_numbers(reference, port, counts):
    result = compared(reference, port)
    assert result.passed, result
    encoder = modules(result)["encoder"]
    assert (encoder.status, encoder.accumulated) == ("PASS", None)
    assert f"judged alone: {counts}; the results behind it are judged" in encoder.notes


@SIDES
def test_a_right_port_passes_at_all_sizes(reference, port, counts):
    sizes = {name: {0: 1} for name in INPUTS}
    result = parity.compare(reference(), port, INPUTS, ("fp32",), dynamic=sizes)
    assert result.passed, result
    assert modules(result)["encoder"].status == "PASS"


@SIDES
@pytest.mark.parametrize(
    ("bug", "place", "told"),
    [
        ("encoder", "encoder", "with sigmoid in place of tanh"),
        ("input", "forward.output", "relative L2 error"),
        ("scores", "forward.output", "relative L2 error"),
    ],
)
def test_a_wrong_port_fails_at_its_module_or_at_the_output(reference, port, counts, bug, place, told):
    result = compared(reference, port, bug=bug)
    assert not result.passed
    assert f"FAIL at {place}" in str(result)
    assert told in str(result)


@pytest.mark.parametrize(("bug", "passed"), [("", True), ("encoder", False)])
def test_an_encoder_of_joined_calls_alone_is_judged_by_the_results_behind_it(bug, passed):
    result = compared(Apart, JoinedPort, rank=3, bug=bug)
    assert result.passed is passed, result
    # The encoder refuses the users alone, (24, 8), and runs on the items alone.
    assert modules(result)["encoder"].status == "GAP"
    assert modules(result)["encoder@1"].status == ("PASS" if passed else "FAIL")


@SIDES
def test_a_case_asks_for_equal_numbers_and_names_the_option(reference, port, counts):
    class Strict(parity.Case):
        name = "strict"
        build_reference = staticmethod(reference)
        build_port = staticmethod(port)

        def make_inputs(self):
            return {name: tensor.numpy() for name, tensor in INPUTS.items()}

    result = parity.check(Strict(), precisions=("fp32",))
    assert not result.passed
    told = f"{counts.replace('encoder', 'encoder.norm')}; set one_sided in the case if that is right"
    assert told in str(result)
    Strict.one_sided = True
    assert parity.check(Strict(), precisions=("fp32",)).passed
