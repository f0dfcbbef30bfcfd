"""Other right programs of a module: what their rows share, and the verdict among them."""

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.runners.oracle.programs import ProgramErrors, rounding_error
from parity.runners.oracle.rounding import MOST_SAMPLES, Errors
from parity.runners.oracle.sampling import CHUNK_BYTES, rounding_samples
from parity.verdict.bound import bound_for
from parity.verdict.rule import Standard
from parity.verdict.sampling_error import RoundingSamples
from tests.parity.test_api_other_programs import WIDTH, Model, inputs

BF16 = PRECISIONS["bf16"]


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_the_error_of_rounding_is_that_of_a_cast(name):
    precision = PRECISIONS[name]
    sizes = torch.logspace(-6, 4, 4001, dtype=torch.float64)
    values = torch.cat([sizes, -sizes / 3, torch.tensor([0.0, -0.0, 1.0 + precision.unit_roundoff])])
    assert torch.equal(values + rounding_error(values, precision), values.to(precision.dtype).double())


def test_an_infinite_number_has_no_error_of_rounding():
    assert rounding_error(torch.tensor([torch.inf, -torch.inf], dtype=torch.float64), BF16).tolist() == [0, 0]


@pytest.mark.parametrize("together", [True, False])
def test_a_program_rounds_a_whole_result_or_keeps_it(together):
    """Samples in one pass and one by one."""
    x = torch.rand(50, 3, generator=torch.Generator().manual_seed(1)).bfloat16().double()
    largest = 1 if together else CHUNK_BYTES
    samples = rounding_samples(
        x.clone, lambda own: {"y": own / 3.0}, ["y"], BF16, MOST_SAMPLES, largest, errors_of=ProgramErrors
    )["y"]
    exact = x / 3.0
    kept = [torch.equal(sample, exact) for sample in samples]
    is_rounded = [torch.equal(sample, exact.bfloat16().double()) for sample in samples]
    assert [a != b for a, b in zip(kept, is_rounded, strict=True)] == [True] * MOST_SAMPLES
    assert MOST_SAMPLES / 4 < sum(kept) < 3 * MOST_SAMPLES / 4


def biased_apart(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The model's result where the inner layer rounds its sum before it adds the bias."""
    return model.outer(x @ model.inner.weight.T + model.inner.bias)


@pytest.fixture(scope="module")
def sides():
    """The module in float64 and in bf16, and its input, whose numbers bf16 holds."""
    model = Model().bfloat16()
    x = inputs().bfloat16()
    wide = Model().double()
    wide.load_state_dict(model.state_dict())
    return wide, model, x


def sampled(wide, x, errors_of, count=MOST_SAMPLES):
    samples = rounding_samples(
        x.double, lambda own: {"y": wide(own)}, ["y"], BF16, count, 1, errors_of=errors_of
    )
    return RoundingSamples(samples["y"])


def standard_of(sides, programs=None):
    wide, model, x = sides
    bound = bound_for(BF16, WIDTH)
    samples = sampled(wide, x, Errors, 8)
    return Standard(wide(x.double()), model(x), bound, rounding_samples=samples, programs=programs)


def test_an_error_that_all_rows_share_is_one_of_other_programs(sides):
    """The port adds the bias to a rounded sum, which loses it in every row."""
    wide, model, x = sides
    standard, port = standard_of(sides), biased_apart(model, x)
    alone = standard.judge(port)
    assert alone.exceeds_scale_alone
    assert not alone.passed
    among = standard_of(sides, sampled(wide, x, ProgramErrors)).judge(port)
    assert among.passed
    assert among.limit.scale_error > alone.limit.scale_error
    # No number of rows lowers this limit, and the detected error tells its size.
    assert among.lasting_limit > alone.lasting_limit
    assert among.min_detectable_error > 0.01


def test_a_factor_that_no_program_has_fails_among_them(sides):
    """Rows of one product share nothing, and other programs allow hardly more than independent rows do."""
    x = sides[2]
    model = torch.nn.Linear(WIDTH, 4, bias=False).requires_grad_(False)
    model.weight.copy_(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(7)))
    model.bfloat16()
    wide = torch.nn.Linear(WIDTH, 4, bias=False).requires_grad_(False).double()
    wide.load_state_dict(model.state_dict())
    standard = standard_of((wide, model, x))
    wrong = (1.006 * model(x).float()).bfloat16()
    assert standard.judge(model(x)).passed
    assert standard.judge(wrong).exceeds_scale_alone
    among = standard_of((wide, model, x), sampled(wide, x, ProgramErrors))
    assert not among.judge(wrong).passed
    assert among.judge(model(x)).limit.scale_error < 1.2 * standard.judge(model(x)).limit.scale_error
