"""The search for a cause: what is tried on the arguments, how often, and which results count."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.verdict.causes import search
from parity.verdict.causes.changes import FOLDS
from tests.parity.verdict.planted import told

B, N = 4, 6
X = torch.randn(B, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MASK = torch.rand(B, N, generator=torch.Generator().manual_seed(2)) < 0.5
IDS = torch.arange(B * N).reshape(B, N) ** 2 % 17


def searched(reference, port, arguments=None, **options):
    return told(reference, port, {"x": X} if arguments is None else arguments, **options)


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_shifted_mask(step, axis):
    def reference(mask):
        return X.masked_fill(mask, 0.0)

    text = searched(reference, lambda mask: reference(mask.roll(step, axis)), {"mask": MASK})
    assert text == f"fits the reference with mask shifted by {step:+d} along axis {axis}"


def test_a_mask_with_two_axes_exchanged():
    square = torch.rand(3, N, N, generator=torch.Generator().manual_seed(5)) < 0.5
    values = torch.randn(3, N, N, generator=torch.Generator().manual_seed(6), dtype=torch.float64)

    def reference(mask):
        return values.masked_fill(mask, 0.0)

    text = searched(reference, lambda mask: reference(mask.mT), {"mask": square})
    assert text == "fits the reference with axes 1 and 2 of mask exchanged"


@pytest.mark.parametrize("step", [1, -1])
def test_shifted_integers_stay_positive(step):
    assert IDS.min() == 0

    def reference(ids):
        return torch.cos(ids.double())

    text = searched(reference, lambda ids: reference((ids + step).clamp(min=0)), {"ids": IDS})
    assert text == f"fits the reference with ids shifted by {step:+d}"


FLAGS = torch.zeros(17, dtype=torch.bool)
FLAGS[[5, 12, 13]] = True


@pytest.mark.parametrize(("wrong", "text"), [(1, ""), (6, "fits the reference with ids shifted by +1")])
def test_shifted_data_that_fit_few_booleans_by_chance_are_no_cause(wrong, text):
    """Of 24 booleans, one is soon the wrong one."""
    ids = torch.full((B * N,), 9)
    ids[:wrong:2], ids[1:wrong:2] = 5, 4
    ids[-1] = 12
    assert searched(lambda ids: FLAGS[ids], lambda ids: FLAGS[ids + 1], {"ids": ids}) == text


def test_the_chance_is_the_number_of_tried_changes_in_that_of_results_with_as_few_wrong(monkeypatch):
    """One of 31 is wrong, or none: 32 results."""
    ids = torch.full((31,), 9)
    ids[0], ids[1] = 5, 12
    tried, trials = [], search._trials

    def counted(*options):
        for trial in trials(*options):
            tried.append(trial)
            yield trial

    def is_told():
        tried.clear()
        return searched(lambda ids: FLAGS[ids], lambda ids: FLAGS[ids + 1], {"ids": ids}) != ""

    monkeypatch.setattr(search, "_trials", counted)
    assert not is_told()
    count = len(tried)
    for more, expected in ((0, True), (-0.5, False)):
        monkeypatch.setattr(search, "BY_CHANCE", (count + more) / 32)
        assert is_told() is expected


@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.float32, 2**24), (torch.int32, 2**31)], ids=["float32", "int32"]
)
def test_large_integers_of_another_type(dtype, least):
    """The first integers that the type does not hold."""

    def reference(ids):
        return torch.cos(ids.double())

    def port(ids):
        return reference(ids.to(dtype).to(torch.int64))

    name = str(dtype).removeprefix("torch.")
    assert searched(reference, port, {"ids": least + IDS}) == f"fits the reference with ids as {name}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_floating_point_of_another_type(dtype):
    def reference(x):
        return torch.sin(30 * x)

    text = searched(reference, lambda x: reference((100 * x).to(dtype).double() / 100), {"x": X})
    assert text == ""
    text = searched(reference, lambda x: reference(x.to(dtype).double()), {"x": X})
    assert text == f"fits the reference with x as {str(dtype).removeprefix('torch.')}"


def test_a_program_without_an_operation_has_no_cause():
    assert searched(lambda: X, lambda: X + 1, {}) == ""


def test_a_result_that_does_not_repeat_has_no_cause():
    """Of random numbers, or of a module with a state."""
    assert searched(torch.exp, lambda x: torch.exp(x.float().double()), oracle=torch.exp(X) + 1e-6) == ""


def test_elements_that_do_not_count_may_be_undefined():
    counted = np.ones((B, N), bool)
    counted[1] = False

    def reference(x):
        return torch.sin(torch.where(torch.from_numpy(counted), x, torch.nan))

    def port(x):
        return reference(x.half().double())

    assert searched(reference, port, counted=counted) == "fits the reference with x as float16"
    # Where they count, the port has the same ones.
    assert searched(reference, port) == "fits the reference with x as float16"
    assert searched(reference, lambda x: port(x).nan_to_num()) == ""


def test_a_change_that_does_not_fit_the_shapes_is_no_cause():
    """The sum over another axis has no product with the weight, or a result of another shape."""
    weight = X.T[:5] @ X[:, :3]

    def reference(x):
        return x.sum(0) @ weight

    x = torch.stack([X[:, :5], X[:, 1:] ** 2])
    text = searched(reference, lambda x: 3 * reference(x), {"x": x})
    assert text == "fits the reference with the result of mm times 3"


def test_operations_of_composite_ones_get_all_arguments():
    """In inference mode, they come whole; a type is a keyword."""

    def reference(x):
        return torch.linalg.norm(x, dim=-1, dtype=torch.float64) + 1e-5

    def port(x):
        return reference(x) - 1e-5 + 1e-4

    with torch.inference_mode():
        text = searched(reference, port, {"x": X.float()})
    assert text == "fits the reference with an epsilon of 0.0001 in place of 1e-05 in add"


PARTS = torch.randn(6, B, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
FOLDED = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize(
    ("count", "turned", "told_count"),
    [(2, (0, 1), 2), (3, (0, 2), 2), (search.MOST_JOINT, (1, 4), 2), (6, range(6), 6), (6, (1, 4), 0)],
)
def test_heads_in_the_other_order_at_several_places(count, turned, told_count):
    """Of few places every selection is tried, of many all together."""

    def parts(x, turned=()):
        views = [
            part.reshape(B, 3, 2).mT if place in turned else part.view(B, 2, 3)
            for place, part in enumerate(x.unbind())
        ]
        return sum(torch.tanh(view * FOLDED[place]) for place, view in enumerate(views))

    text = searched(parts, lambda x: parts(x, turned), {"x": PARTS[:count]})
    assert text == (f"fits the reference with {told_count} {FOLDS}" if told_count else "")


def weighted(**tensors):
    return sum(weight * tensor.sum() for weight, tensor in enumerate(tensors.values(), 2))


@pytest.mark.parametrize(
    ("tensors", "exchanged", "told_names"),
    [
        # The first six of seven are exchanged in pairs, of one shape and type.
        (PARTS[0, :, :1].unbind() + PARTS[1, :, :1].unbind()[:3], ("a", "f"), "a and f"),
        (PARTS[0, :, :1].unbind() + PARTS[1, :, :1].unbind()[:3], ("a", "g"), ""),
        ((PARTS[0, 0], PARTS[1, 0, :3]), ("a", "b"), ""),
    ],
)
def test_arguments_in_each_others_place(tensors, exchanged, told_names):
    arguments = dict(zip("abcdefg", tensors, strict=False))
    one, other = exchanged

    def port(**own):
        return weighted(**own | {one: own[other], other: own[one]})

    text = searched(weighted, port, arguments)
    assert text == (f"fits the reference with {told_names} exchanged" if told_names else "")


class Counted:
    """A module that counts its runs."""

    def __init__(self):
        self.runs = 0

    def __call__(self, x):
        self.runs += 1
        first, second = (x * 0.123456789).split(N // 2, dim=1)
        return torch.cat([second.sin(), first], 1)


def _trials(monkeypatch, **limits):
    """Number of runs of changed modules, and the cause."""
    for name, limit in limits.items():
        monkeypatch.setattr(search, name, limit)
    module = Counted()
    text = searched(module, lambda x: Counted()(x.float().double()))
    # The oracle, a first run, and one that lists the operations.
    return module.runs - 3, text


ELEMENTS = B * N + B * N // 2 + B * N
"""Computed elements of one run, of a product, a sine and a concatenation. A split computes nothing."""


def test_a_search_ends_after_a_number_of_trials(monkeypatch):
    text = "fits the reference with x as float32"
    most, found = _trials(monkeypatch)
    assert (most > 10, found) == (True, text)
    for trials in (1, 2, 7):
        assert _trials(monkeypatch, MOST_TRIALS=trials) == (trials, text)


def test_a_search_ends_after_a_number_of_elements(monkeypatch):
    text = "fits the reference with x as float32"
    for elements, trials in (
        (1, 1),
        (ELEMENTS, 1),
        (ELEMENTS + 1, 2),
        (7 * ELEMENTS, 7),
        (7 * ELEMENTS + 1, 8),
    ):
        assert _trials(monkeypatch, MOST_ELEMENTS=elements) == (trials, text)


class Retrying(TorchDispatchMode):
    """Runs an operation that raises once more, as the oracle does in another type."""

    retried = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            self.retried += 1
            return func(*args, **(kwargs or {}))


def test_a_change_that_cannot_be_made_is_no_operation_to_run_again():
    weight = torch.linspace(-1.0, 1.0, 2 * N, dtype=torch.float64).reshape(N, 2, 1)
    retrying = Retrying()

    def reference(x):
        with retrying:
            wide = torch.conv1d(x[:, None].expand(B, 2, N), weight)
            return torch.relu(wide + x[:, None])

    text = searched(reference, lambda x: torch.cos(reference(x)))
    assert (text, retrying.retried) == ("", 0)


def test_weights_of_other_modules_are_tried_behind_changes_of_the_code():
    runs = []

    def reference(x):
        runs.append("code")
        return torch.sin(x) + 1.0

    def weights(text):
        return lambda arguments: runs.append(text) or reference(**arguments)

    words = ("with the weight a.b of another module in place of b", "with the weights b and c exchanged")
    exchanged = {text: weights(text) for text in words}
    assert not told(reference, lambda x: torch.sin(x.flip(0)) * x, {"x": X}, exchanged=exchanged)
    of_another, own = (runs.index(text) for text in words)
    assert runs[of_another:] == [words[0], "code"]
    # Each run with other weights ends in one of the code.
    changes_of_the_code = runs[own + 2 : of_another]
    assert changes_of_the_code
