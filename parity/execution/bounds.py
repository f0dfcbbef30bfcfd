"""The memory of a run by arithmetic: workers, slices and the largest run of a whole batch within a bound.

The bound holds processes, copies of weights, and the tensors of the runs. Processes and weights are fixed by
the number of workers. The rest is for tensors: of slices in parts, and of whole batches alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from parity.base.errors import UserError
from parity.base.memory import of_machine
from parity.capture.slices import MemoryBudget
from parity.case import Case
from parity.execution.record import ORACLE, REFERENCE
from parity.execution.request import Request
from parity.execution.scheduler import Sharing, sharings
from parity.inputs.prepared import PreparedCase, prepare

GIGABYTE = 10**9
OPTION = "--memory"
ENGINE_BYTES = 3 * 2**28
"""Memory of the engine and of the server of its processes, with their libraries."""
RUNNER_BYTES = 2**29
"""Memory of a runner's process besides tensors and weights: executables, and freed memory that it keeps."""
WEIGHT_COPIES = 3
"""Copies of float32 weights in a runner's process: those that it reads, and its own of twice the width."""
LEAST_PART = 2**29
"""Least memory of a part of the machine. A third of it is the size of a slice; the rest are copies."""
EASY_PART = 2**30
"""Memory of a part of the machine from which several workers work side by side."""
SHARE_OF_MACHINE = 0.75
"""Share of the machine's memory that a run takes at most by default."""


@dataclass(frozen=True)
class Needs:
    """The fixed memory of a run.

    Attributes:
        runners: Largest number of runners of a case, with reference and oracle.
        weights: Largest size of a case's float32 weights in bytes.
        prepared: Size of the weights and inputs of all cases in bytes, which the engine holds.
    """

    runners: int
    weights: int
    prepared: int

    def fixed(self, workers: int) -> int:
        """Bytes of all processes."""
        of_a_runner = RUNNER_BYTES + WEIGHT_COPIES * self.weights
        return ENGINE_BYTES + self.prepared + workers * self.runners * of_a_runner

    @property
    def least(self) -> int:
        """Least bytes of a run."""
        return self.fixed(1) + LEAST_PART


@dataclass(frozen=True)
class PreparedRun:
    """A run with the inputs and weights of its cases, and the division of the machine.

    Attributes:
        request: The run, with its budget.
        cases: The prepared cases, in the order of the request.
        sharing: Workers and their cores.
    """

    request: Request
    cases: list[PreparedCase]
    sharing: Sharing


def prepare_within(request: Request) -> PreparedRun:
    """Draw or read the inputs and weights of a run that fits into its memory.

    Raises:
        UserError: The memory is too little, or see `parity.inputs.prepared.prepare`.
    """
    runners = [len({REFERENCE, ORACLE, *request.runners_of(case)}) for case in request.cases]
    # What is known by arithmetic is refused before anything is drawn.
    require_least(request.memory, needs_of_cases(zip(request.cases, runners, strict=True)))
    cases = prepare(request.cases, request.data, request.checkpoint, request.rows)
    needs = needs_of_prepared(zip(cases, runners, strict=True))
    require_least(request.memory, needs)
    sharing, budget = divided(request.memory, needs)
    return PreparedRun(replace(request, budget=request.budget or budget), cases, sharing)


def needs_of_cases(cases: Iterable[tuple[Case, int]]) -> Needs:
    """What is known before weights and inputs are drawn, of cases with their numbers of runners."""
    sizes = [(runners, *case.least_bytes()) for case, runners in cases]
    return _needs((runners, weights, inputs) for runners, weights, inputs in sizes)


def needs_of_prepared(cases: Iterable[tuple[PreparedCase, int]]) -> Needs:
    """The needs of cases whose weights and inputs are drawn, with their numbers of runners."""
    return _needs((runners, _weights(case), _inputs(case)) for case, runners in cases)


def _needs(sizes: Iterable[tuple[int, int, int]]) -> Needs:
    known = list(sizes)
    return Needs(
        runners=max(runners for runners, _, _ in known),
        weights=max(weights for _, weights, _ in known),
        prepared=sum(weights + inputs for _, weights, inputs in known),
    )


def _weights(case: PreparedCase) -> int:
    return sum(tensor.nbytes for tensor in case.weights.values())


def _inputs(case: PreparedCase) -> int:
    batches = (*(batch.inputs for batch in case.inputs.batches), *case.inputs.labels)
    return sum(array.nbytes for batch in batches for array in batch.values())


def checked(gigabytes: float | None) -> float | None:
    """The bound of an option in bytes. Raises `UserError` for a number that is no bound of this machine."""
    if gigabytes is None:
        return None
    if not (math.isfinite(gigabytes) and gigabytes > 0):
        raise UserError(OPTION, gigabytes, "is no positive number of gigabytes", "give one such as 8")
    if gigabytes * GIGABYTE > of_machine():
        here = f"is more than the {of_machine() / GIGABYTE:.3g} GB of this machine"
        raise UserError(OPTION, gigabytes, here, "give less, or leave the option out")
    return gigabytes * GIGABYTE


def require_least(memory: float | None, needs: Needs) -> None:
    """Refuse a bound that is less than the least. Without a bound, the machine's own limits refuse.

    Raises:
        UserError: The bound is too low.
    """
    if memory is not None and memory < needs.least:
        raise too_low(memory, needs.least)


def too_low(memory: float, least: float) -> UserError:
    """The refusal of a bound, with the least one that would do."""
    # Rounded up, so that the number is enough.
    enough = -(-least // (GIGABYTE // 100)) / 100
    return UserError(
        OPTION,
        f"{memory / GIGABYTE:.3g}",
        f"is less than the {enough:.2f} GB that this run needs",
        f"give {OPTION} {enough:.2f} or more, a smaller --batch, or fewer --runners",
    )


def divided(memory: float | None, needs: Needs) -> tuple[Sharing, MemoryBudget]:
    """The division of the machine, and the sizes of slices and of whole runs, within a bound.

    Without a bound of the user, the sizes follow from the machine's memory, and all workers work.

    Args:
        memory: The bound in bytes, or None.
        needs: The fixed memory.
    """
    within = SHARE_OF_MACHINE * of_machine() if memory is None else memory
    part = lambda division: (within - needs.fixed(division.workers)) / division.parts  # noqa: E731
    possible = sharings()
    easy = (division for division in possible if memory is None or part(division) >= EASY_PART)
    chosen = next(easy, possible[-1])
    size, default = max(part(chosen), LEAST_PART), MemoryBudget()
    budget = MemoryBudget(
        slice_bytes=int(min(default.slice_bytes, size / 3)),
        alone_bytes=int(min(default.alone_bytes, size)),
        memory=math.inf if memory is None else memory,
        fixed_bytes=needs.fixed(1),
    )
    return chosen, budget


def require_memory(budget: MemoryBudget, needed: int) -> None:
    """Refuse a batch whose run needs more memory than the user allows.

    Args:
        budget: The budget of the run.
        needed: Bytes of the batch's tensors.

    Raises:
        UserError: The bound is too low.
    """
    if budget.fixed_bytes + needed > budget.memory:
        raise too_low(budget.memory, budget.fixed_bytes + needed)
