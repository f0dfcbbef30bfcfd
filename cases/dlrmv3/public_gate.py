"""The accuracy gate of MLPerf's inference benchmark for DLRMv3.

Source: mlcommons/inference, ``tools/submission/submission_checker/constants.py`` and
``checks/accuracy_check.py``, and ``recommendation/dlrm_v3/README.md``.

Three numbers over all candidates of 349,823 requests must reach 99.9 % of the reference's. There is no upper
limit. A smaller normalized entropy is better, so its limit stops models that are too good, and none that is
too bad. No prediction is compared with the reference's.

TEST08 of the benchmark compares a submission's entropy of single requests with another run of the same
submission, within 0.1 %. A fault that both runs have passes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity.verdict.task_metrics.candidates import ACCURACY, AUC, NORMALIZED_ENTROPY, Candidates

FRACTION = 0.999
"""Share of the reference's number that a submission has to reach."""
REFERENCE = {NORMALIZED_ENTROPY: 0.86687, ACCURACY: 0.69651, AUC: 0.78663}
"""Numbers of the public model with its trained weights on the benchmark's requests."""


def numbers(predictions_n: np.ndarray, truth_n: np.ndarray) -> dict[str, float]:
    """The three numbers.

    Args:
        predictions_n: The model's numbers for all candidates, whatever they are.
        truth_n: See `parity.verdict.task_metrics.candidates.Candidates.truth`.
    """
    over = {metric.name: metric.over for metric in Candidates("").metrics}
    return {name: float(over[name](predictions_n, truth_n)) for name in REFERENCE}


def missed(actual: Mapping[str, float], reference: Mapping[str, float] = REFERENCE) -> tuple[str, ...]:
    """Names of the numbers below their limits; empty for a submission that passes. NaN is below."""
    return tuple(name for name in REFERENCE if not actual[name] >= FRACTION * reference[name])
