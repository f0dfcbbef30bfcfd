"""The memory of a run: what a bound refuses, and the workers and slices that it leaves."""

import math

import numpy as np
import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.capture.slices import MemoryBudget
from parity.execution import bounds
from parity.execution.bounds import Needs, checked, divided, needs_of_cases, needs_of_prepared, require_least
from parity.execution.commands import WorkingBytes
from parity.execution.scheduler import Sharing
from parity.inputs.prepared import prepare

GIB = 2**30
NEEDS = Needs(runners=3, weights=2**28, prepared=2**29)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with 32 GiB, which has room for two workers."""
    monkeypatch.setattr(bounds, "of_machine", lambda: 32.0 * GIB)
    monkeypatch.setattr(bounds, "sharings", lambda: [Sharing(2, 2), Sharing(1, 1)])


def test_the_fixed_memory_has_processes_and_copies_of_weights():
    # 0.75 of the engine, 0.5 prepared, and for each runner 0.5 and three copies of 0.25.
    assert NEEDS.fixed(1) == (0.75 + 0.5 + 3 * 1.25) * GIB
    assert NEEDS.fixed(2) == (0.75 + 0.5 + 6 * 1.25) * GIB
    assert NEEDS.least == NEEDS.fixed(1) + GIB // 2


@pytest.mark.parametrize(
    ("memory", "sharing", "part"),
    [
        (10.75, Sharing(2, 2), 1.0),
        (10.74, Sharing(1, 1), 3.0),
        (6.5, Sharing(1, 1), 1.5),
        (5.5, Sharing(1, 1), 0.5),
        (30, Sharing(2, 2), 3.0),
    ],
)
def test_a_bound_leaves_workers_and_slices(memory, sharing, part):
    """Workers work side by side where each has 1 GiB. A slice is a third of a part."""
    chosen, budget = divided(memory * GIB, NEEDS)
    assert chosen == sharing
    assert budget.alone_bytes == part * GIB
    assert budget.slice_bytes == int(min(GIB, part * GIB / 3))
    assert (budget.memory, budget.fixed_bytes) == (memory * GIB, NEEDS.fixed(1))
    assert budget.alone_bytes + NEEDS.fixed(sharing.workers) <= memory * GIB


@pytest.mark.parametrize(("size", "alone"), [(32, 3.0), (12, 0.5)])
def test_without_a_bound_the_machine_has_one_for_slices(monkeypatch, size, alone):
    monkeypatch.setattr(bounds, "of_machine", lambda: float(size * GIB))
    chosen, budget = divided(None, NEEDS)
    assert chosen == Sharing(2, 2)
    assert (budget.alone_bytes, budget.memory) == (alone * GIB, math.inf)
    if size == 32:
        assert (budget.slice_bytes, budget.alone_bytes) == (
            MemoryBudget().slice_bytes,
            MemoryBudget().alone_bytes,
        )


def test_too_low_a_bound_is_refused_with_the_least_one():
    require_least(None, NEEDS)
    require_least(NEEDS.least, NEEDS)
    with pytest.raises(UserError) as refused:
        require_least(NEEDS.least - 1, NEEDS)
    assert str(refused.value) == (
        "--memory: 5.91 is less than the 5.91 GB that this run needs; "
        "give --memory 5.91 or more, a smaller --batch, or fewer --runners"
    )
    require_least(5.91 * bounds.GIGABYTE, NEEDS)


def test_a_batch_beyond_the_bound_is_refused():
    budget = MemoryBudget(memory=4 * GIB, fixed_bytes=3 * GIB)
    bounds.require_memory(budget, GIB)
    with pytest.raises(UserError, match=r"--memory: 4.29 is less than the 5.37 GB"):
        bounds.require_memory(budget, 2 * GIB)
    bounds.require_memory(MemoryBudget(), 2**60)
    assert WorkingBytes(forward=1, appending=2, row=5, judged=4).largest == 5


@pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_is_a_positive_number(number):
    with pytest.raises(UserError, match="is no positive number of gigabytes"):
        checked(number)


def test_a_bound_is_within_the_machine():
    assert checked(None) is None
    assert checked(34.0) == 34e9
    with pytest.raises(UserError, match=r"is more than the 34.4 GB of this machine"):
        checked(35.0)


def test_needs_follow_from_cases_and_then_from_their_weights_and_inputs():
    case = load_case("hstu_tiny")
    (prepared,) = prepare([case], None, None)
    known, exact = needs_of_cases([(case, 3), (case, 5)]), needs_of_prepared([(prepared, 3)])
    assert (known.runners, exact.runners) == (5, 3)
    assert exact.weights == sum(tensor.nbytes for tensor in prepared.weights.values())
    arrays = [array for batch in prepared.inputs.batches for array in batch.inputs.values()]
    assert exact.prepared == exact.weights + sum(np.asarray(array).nbytes for array in arrays)
    assert 0 < known.weights < known.prepared
