"""The place of a wrong output of the incremental forward: its first call that receives a wrong argument.

Integers, booleans and constants must be equal. The oracle is no runner of the incremental forward, so that
other numbers have no limit of their own. They are wrong beyond half of the digits of the tested precision:
rounding is rarely the cause of so large an error, and another failure has shown that something is wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from parity.capture.names import TapName
from parity.verdict.arguments import judge_arguments
from parity.verdict.bound import half_of_digits
from parity.verdict.diagnosis import argument_of
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import Diagnosis
from parity.verdict.tolerance import Tolerated


def in_appends(evidence: Evidence, results: Results, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a wrong output of the incremental forward, with the code that makes a wrong argument.

    It is the given diagnosis of any other failure, and where no argument is known to be wrong. A module that
    the sides call a different number of times is left out: its calls have no partners. So are arguments that
    a form has in another layout; appended rows have one layout in all forms.
    """
    if diagnosis.kind != "check" or diagnosis.tap not in evidence.reference_incremental:
        return diagnosis
    theirs, ours = evidence.appending, results.appending
    numbers = [Counter(TapName.parse(call).path for call in side.arguments) for side in (theirs, ours)]

    def has_partner(call: str) -> bool:
        path = TapName.parse(call).path
        return numbers[0][path] == numbers[1][path]

    rounding = Tolerated({"": half_of_digits(evidence.precision.unit_roundoff)}, {"": -1})
    paired = {call: own for call, own in theirs.arguments.items() if has_partner(call)}
    calls = judge_arguments(
        replace(evidence, reference=replace(theirs, arguments=paired), oracle_received=theirs),
        replace(results, received=ours),
        len(theirs.tensors),
        with_floats=True,
        excluded=lambda tensor: None,
        tolerated=rounding,
    )
    for call in calls:
        wrong = tuple(own for own in call.differing if own.kind == "value")
        if wrong:
            receives = replace(call, differing=wrong, equal=()).text()
            text = (
                f"{call.call} {receives}; every module passes on its own; the code of "
                f"{call.parent or 'prefill or extend'} makes the argument; so {diagnosis.text}"
            )
            return replace(
                diagnosis,
                kind="between",
                text=text,
                explanation=wrong[0].explanation,
                code=call.parent,
                argument=argument_of(call.call, wrong[0].name),
            )
    return diagnosis
