"""Metrics of a reference and of ports over all batches, from captures; the package's docstring has the rule.

Legend: B rows of a batch, n rows of all batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

import numpy as np
import scipy.stats

from parity.base.precision import Precision
from parity.base.task import Metric, Task
from parity.capture.store import is_saved, load_longest_sum, load_tap
from parity.execution.folder import BatchFolder
from parity.execution.record import ORACLE, REFERENCE
from parity.inputs.arrays import load
from parity.verdict.bound import bound_for
from parity.verdict.judgement import MetricJudgement, MetricValues

CONFIDENCE = 0.95
RESAMPLES = 999
"""Number of resamples of the bootstrap. The interval ends at the 25th from either side."""
PERTURBATIONS = 32
"""Number of perturbed outputs. Their spread is then known to about an eighth."""
SEED = 0
_BLOCK = 1 << 22
"""Number of elements that are resampled at once."""
_QUANTILE = float(scipy.stats.norm.ppf(0.5 + CONFIDENCE / 2))


class Evaluation:
    """Collects the rows of a case in one precision, batch by batch."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task = task
        self._precision = precision
        self._batches = 0
        self._longest_sum = 1
        self._truth: list[np.ndarray] = []
        self._rows: dict[str, list[np.ndarray]] = {}
        self._perturbed: list[np.ndarray] = []

    def add(self, batch: BatchFolder, runners: Collection[str]) -> None:
        """Add the next batch from its folder: the outputs of the reference, the oracle and `runners`.

        Raises:
            UserError: A file of the batch is missing or damaged.
        """
        labels, inputs = load(batch.labels).arrays, load(batch.inputs).arrays
        folder = batch.precision(self._precision.name)
        tap = self._task.output
        stems = {name: folder.runner(name).untapped for name in (REFERENCE, *runners)}
        stems[ORACLE] = folder.runner(ORACLE).tapped
        # A runner that raises in one step still has captures of others.
        outputs = {name: load_tap(stem, tap) if is_saved(stem) else None for name, stem in stems.items()}
        arrays = {name: None if tap is None else tap.double().numpy() for name, tap in outputs.items()}
        self.add_outputs(arrays, labels, inputs, load_longest_sum(folder.runner(REFERENCE).tapped))

    def add_outputs(
        self,
        outputs: Mapping[str, np.ndarray | None],
        labels: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
        longest_sum: int,
    ) -> None:
        """Add the next batch.

        Args:
            outputs: (B, ...) float64 by runner, with the reference and the oracle. A runner without an output
                of the reference's shape has no row in this batch.
            labels: Labels of the batch.
            inputs: Inputs of the batch.
            longest_sum: Terms of the model's longest sum.
        """
        task = self._task
        reference, oracle = outputs[REFERENCE], outputs[ORACLE]
        assert reference is not None
        assert oracle is not None
        truth_B = task.truth(labels)
        for name, output in outputs.items():
            usable = output is not None and output.shape == reference.shape
            rows_B = task.rows(output, labels, inputs) if usable else np.full(truth_B.size, np.nan)
            self._rows.setdefault(name, []).append(rows_B)
        bound = bound_for(self._precision, longest_sum)
        error = bound.k * np.abs(reference - oracle) + bound.floor * np.abs(oracle)
        signs = np.random.default_rng([SEED, self._batches]).choice(
            (-1.0, 1.0), (PERTURBATIONS, *oracle.shape)
        )
        moved = (task.nearest(oracle + sign * error) for sign in signs)
        self._perturbed.append(np.stack([task.rows(output, labels, inputs) for output in moved]))
        self._truth.append(truth_B)
        self._longest_sum = max(self._longest_sum, longest_sum)
        self._batches += 1

    def judge(self, runner: str) -> tuple[MetricJudgement, ...]:
        """Every metric of a runner beside the reference's, over all batches so far."""
        truth_n = np.concatenate(self._truth)
        sides = {
            name: np.concatenate(self._rows[name]) for name in dict.fromkeys((REFERENCE, ORACLE, runner))
        }
        perturbed = np.concatenate(self._perturbed, axis=1)
        unusable = self._unusable(sides)
        judgements = []
        for metric in self._task.metrics:
            reason = unusable or metric.undefined(truth_n)
            values = None
            if not reason:
                values = self._compare(
                    metric, truth_n, sides[REFERENCE], sides[ORACLE], sides[runner], perturbed
                )
            judgements.append(MetricJudgement(metric.name, truth_n.size, reason, values))
        return tuple(judgements)

    def _unusable(self, sides: Mapping[str, np.ndarray]) -> str:
        """The reason why a side has no metrics, or empty. NaN is never averaged away."""
        for name, rows_n in sides.items():
            bad = int(np.isnan(rows_n).sum())
            if bad:
                return f"{bad} of {rows_n.size} rows of {name} have {self._task.unusable}"
        return ""

    def _compare(
        self,
        metric: Metric,
        truth_n: np.ndarray,
        reference_n: np.ndarray,
        oracle_n: np.ndarray,
        port_n: np.ndarray,
        perturbed: np.ndarray,
    ) -> MetricValues:
        reference, oracle, port = (
            float(metric.over(rows_n, truth_n)) for rows_n in (reference_n, oracle_n, port_n)
        )
        bound = bound_for(self._precision, self._longest_sum)
        changes = metric.over(perturbed, np.broadcast_to(truth_n, perturbed.shape)) - oracle
        floor = _QUANTILE * float(np.sqrt(np.mean(changes**2)))
        limit = bound.k * abs(reference - oracle) + floor
        interval, no_interval = difference_interval(metric, truth_n, reference_n, port_n)
        excludes_zero = interval is not None and (interval[0] > 0.0 or interval[1] < 0.0)
        return MetricValues(
            oracle=oracle,
            reference=reference,
            port=port,
            interval=interval,
            no_interval=no_interval,
            k=bound.k,
            floor=floor,
            limit=limit,
            flagged=abs(port - oracle) > limit and excludes_zero,
        )


def difference_interval(
    metric: Metric, truth_n: np.ndarray, reference_n: np.ndarray, port_n: np.ndarray
) -> tuple[tuple[float, float] | None, str]:
    """The 95 % paired percentile-bootstrap interval of port - reference, or None and the reason.

    Args:
        metric: The metric.
        truth_n: Labels, (n,).
        reference_n: Rows of the reference, (n,).
        port_n: Rows of the port, (n,).
    """
    count = truth_n.size
    if count < 2:
        return None, "one row is no sample"
    if np.array_equal(reference_n, port_n):
        return (0.0, 0.0), ""

    def difference(index: np.ndarray, axis: int) -> np.ndarray:
        index = np.moveaxis(index, axis, -1)
        labels = truth_n[index]
        return metric.over(port_n[index], labels) - metric.over(reference_n[index], labels)

    with warnings.catch_warnings():
        # The reason below replaces the warning about undefined resamples.
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        result = scipy.stats.bootstrap(
            (np.arange(count),),
            difference,
            n_resamples=RESAMPLES,
            batch=max(1, _BLOCK // count),
            vectorized=True,
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(SEED),
        )
    undefined = int(np.isnan(result.bootstrap_distribution).sum())
    if undefined:
        return None, f"{undefined} of {RESAMPLES} resamples have labels of one kind only: too few rows"
    return (float(result.confidence_interval.low), float(result.confidence_interval.high)), ""
