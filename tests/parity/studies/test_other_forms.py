"""Faults in fused forms of the port and in streams, which no plain forward runs."""

from __future__ import annotations

import pytest

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.other_forms import OtherForms, try_in_every_form
from tests.parity.case_runs import bench_of, on_bench

CASE = "hstu_tiny"
OF_BENCH = on_bench(CASE)
STREAM, FUSED = "tripy_port.hstu_stream", "tripy_port.hstu_fused"


@pytest.fixture(scope="module")
def forms():
    """The other forms on the typical batch alone, which is quick."""
    bench = bench_of(CASE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench, "plan", lambda: [bench], raising=False)
        yield OtherForms(bench, [STREAM, FUSED])


def _try(forms: OtherForms, module: str, old: str, new: str, of_class: str = ""):
    edit = Edit(
        "by hand: test", "m", "an edit", module=module, old=old, new=new, family="hstu", of_class=of_class
    )
    return try_in_every_form(bench_of(CASE), lambda: forms, edit)


@OF_BENCH
def test_a_stream_shows_a_fault_and_names_its_step(forms):
    old = "column_11S >= filled_from_B11)"
    finding = _try(forms, STREAM, old, old.replace(">=", ">"))
    assert (finding.outcome, finding.kind, finding.localised) == (Outcome.DETECTED, "stream", True)
    assert finding.batch.startswith("stream, step ")


@OF_BENCH
def test_a_fused_form_shows_a_fault_and_names_its_module(forms):
    old = "for layer in self._attention_layers:"
    finding = _try(forms, FUSED, old, old.replace(":", "[::-1]:"), "HSTUFused")
    assert (finding.outcome, finding.named, finding.localised) == (Outcome.DETECTED, "_hstu", True)
    assert finding.batch == "typical, tripy_jagged"


@OF_BENCH
def test_the_same_bits_are_equivalent_and_a_line_that_nothing_runs_is_not_asked(forms):
    old = "column_11S >= filled_from_B11)"
    assert _try(forms, STREAM, old, "(filled_from_B11 <= column_11S))").outcome is Outcome.EQUIVALENT
    unused = _try(forms, "tripy_port.hstu_transducer", "no_targets", "no_targets ")
    assert unused.outcome in (Outcome.NOT_ASKED, Outcome.BROKEN)
    assert _try(forms, STREAM, "not there", "").outcome is Outcome.BROKEN
