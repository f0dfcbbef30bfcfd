"""Two reports: what counts as worse, what as noise, what cannot be compared, and the command's exit code."""

import math

import numpy as np
import pytest

from parity.base.errors import UserError
from parity.report.assemble import latency_report
from parity.report.differences import GROWTH, Changes, compare_reports, unchanged_up_to
from parity.report.schema import PrecisionReport
from parity.report.terminal_differences import summary
from tests.parity import made_reports
from tests.parity.made_reports import CULPRIT, TAPS, module, port, reference, verdict


def _one(*modules, **changes):
    """A report of one port in one precision."""
    modules = modules or tuple(module(tap) for tap in TAPS)
    return made_reports.report((reference(), port("fp32", modules, **changes)))


def _case(report, **changes):
    return report.model_copy(update={"cases": (report.cases[0].model_copy(update=changes),)})


def _kinds(changes):
    return [(change.kind, change.what) for change in changes]


def test_a_report_equals_itself():
    for entry in (made_reports.passing(), made_reports.failing(), made_reports.everything()):
        actual = compare_reports(entry, entry)
        assert (actual.worse, actual.better, actual.added, actual.not_comparable, actual.notes) == (
            [],
            [],
            [],
            [],
            [],
        )
        assert actual.errors > 0
        assert actual.moved == 0
        assert actual.latencies > 0


class TestErrors:
    @pytest.mark.parametrize(
        ("norm", "factor", "worse"),
        [
            ("err_port_l2", 1.0, 0),
            ("err_port_l2", 1.41, 0),
            ("err_port_l2", 1.42, 1),
            ("err_port_l2", 0.7, 0),
            ("err_port_l2", math.inf, 1),
            ("err_port_l2", math.nan, 1),
            ("err_port_max", 2.2, 0),
            ("err_port_max", 2.3, 1),
        ],
    )
    def test_growth_beyond_what_other_roundings_explain(self, norm, factor, worse):
        before = verdict()
        after = before.model_copy(update={norm: getattr(before, norm) * factor})
        actual = compare_reports(_one(module("m")), _one(module("m", isolated=after)))
        assert _kinds(actual.worse) == [("error", "m alone")] * worse
        assert actual.moved == (factor != 1.0)
        if worse:
            assert actual.worse[0].factor == pytest.approx(math.inf if math.isnan(factor) else factor)

    def test_the_same_the_other_way_round_is_better(self):
        small, large = _one(module("m", inside=0.2)), _one(module("m", inside=0.4))
        assert _kinds(compare_reports(small, large).worse) == [("error", "m in the model")]
        actual = compare_reports(large, small)
        assert actual.worse == []
        assert _kinds(actual.better) == [("error", "m in the model")]

    def test_what_was_exact_and_no_longer_is(self):
        exact = verdict(margin=0.0)
        actual = compare_reports(_one(module("m", isolated=exact)), _one(module("m", alone=1e-6)))
        assert [change.factor for change in actual.worse] == [math.inf]
        assert (
            compare_reports(_one(module("m", isolated=exact)), _one(module("m", isolated=exact))).worse == []
        )

    def test_checks_are_compared(self):
        actual = compare_reports(_one(), _one(checks={"incremental.current": verdict(margin=0.9)}))
        assert _kinds(actual.worse) == [("error", "incremental.current")]

    @pytest.mark.parametrize("elements", [1, 16, 640])
    def test_rounding_drawn_anew_stays_below_the_rule(self, elements):
        """Errors of two orders of the same roundings: independent draws of one variance."""
        draws = np.random.default_rng(0).normal(size=(3000, 2, elements))
        norms = np.sqrt((draws**2).mean(axis=-1)), np.abs(draws).max(axis=-1)
        for norm, up_to in zip(norms, unchanged_up_to(elements), strict=True):
            assert np.sum(norm[:, 1] / norm[:, 0] > up_to) <= 1
            assert up_to >= GROWTH
        # Where there are elements enough, twice the error is seen in nearly every draw.
        if elements == 640:
            assert np.mean(2.0 * norms[0][:, 1] / norms[0][:, 0] > unchanged_up_to(elements)[0]) > 0.99


class TestLatencies:
    @pytest.mark.parametrize(
        ("median", "p25", "p75", "runs", "worse", "better"),
        [
            (0.012, 0.0118, 0.0125, 15, 0, 0),
            (0.0130, 0.0129, 0.0131, 15, 1, 0),  # 1.0 ms apart, ranges of 0.7 and 0.2
            (0.0129, 0.0128, 0.0131, 15, 0, 0),  # 0.9 ms apart, ranges of 0.7 and 0.3
            (0.0200, 0.0120, 0.0300, 15, 0, 0),
            (0.0110, 0.0109, 0.0111, 15, 0, 1),
            (0.5, 0.5, 0.5, 3, 0, 0),
        ],
    )
    def test_beyond_both_ranges_together(self, median, p25, p75, runs, worse, better):
        now = made_reports.latency(median, p25, p75, runs)
        before, after = port("fp32", (), checks={}), port("fp32", (), checks={}, latency=now)
        actual = compare_reports(made_reports.report((before,)), made_reports.report((after,)))
        assert _kinds(actual.worse) == [("latency", "whole model")] * worse
        assert _kinds(actual.better) == [("latency", "whole model")] * better

    @pytest.mark.parametrize(("slower", "worse"), [(1.0, 1), (1.2, 1), (5.0, 0)])
    def test_what_the_reference_lost_as_well_is_the_machine(self, slower, worse):
        """The port takes five times as long; the reference beside it as long as before, or longer."""

        def report(port_factor, reference_factor):
            def times(latency, factor):
                numbers = {name: getattr(latency, name) * factor for name in ("median", "p25", "p75")}
                return latency.model_copy(update=numbers)

            beside = reference()
            beside = beside.model_copy(update={"latency": times(beside.latency, reference_factor)})
            runner = made_reports.passing_port("fp32")
            runner = runner.model_copy(update={"latency": times(runner.latency, port_factor)})
            return made_reports.report((beside, runner))

        actual = compare_reports(report(1, 1), report(5, slower))
        assert _kinds(actual.worse) == [("latency", "whole model")] * worse
        assert _kinds(compare_reports(report(5, slower), report(1, 1)).better) == _kinds(actual.worse)

    def test_a_module_that_became_slower_is_named_where_the_model_did(self):
        slow = made_reports.latency(9e-5, 8e-5, 1e-4, 7)
        whole = made_reports.latency(0.02, 0.019, 0.021)
        actual = compare_reports(_one(module("m")), _one(module("m", latency=slow), latency=whole))
        assert _kinds(actual.worse) == [("latency", "whole model"), ("latency", "m")]
        assert actual.worse[1].factor == pytest.approx(4.5)
        assert compare_reports(_one(module("m")), _one(module("m", latency=slow))).worse == []

    @pytest.mark.parametrize("draw", ["normal", "lognormal", "exponential"])
    def test_two_samples_of_one_machine_hardly_ever_differ(self, draw):
        """The claim of 1 in 2,000 for 7 runs."""
        random = np.random.default_rng(0)
        sample = {
            "normal": lambda: random.normal(1.0, 0.05, 7),
            "lognormal": lambda: random.lognormal(0.0, 0.3, 7),
            "exponential": lambda: 1.0 + random.exponential(0.1, 7),
        }[draw]
        worse = 0
        for _ in range(4000):
            before, after = latency_report(list(sample())), latency_report(list(sample()))
            worse += after.median - before.median > (before.p75 - before.p25) + (after.p75 - after.p25)
        assert worse <= 6

    def test_other_machines_are_not_compared(self):
        slow = _one(latency=made_reports.latency(9.0, 9.0, 9.0))
        other = slow.model_copy(update={"environment": slow.environment | {"cores": "4", "gpu": "H200"}})
        actual = compare_reports(_one(), other)
        assert (actual.worse, actual.latencies) == ([], 0)
        assert actual.notes == [
            "latencies are not comparable: the environments differ in cores 2 and 4, gpu none and H200"
        ]
        assert actual.errors > 0

    def test_another_runtime_is_not_compared(self):
        actual = compare_reports(_one(), _one(label="tripy (native TensorRT 10.15)", latency=None))
        assert actual.worse == []
        assert any("was tripy (portable, cpu)" in note for note in actual.notes)


class TestWhatIsGone:
    def test_a_module(self):
        actual = compare_reports(_one(), _one(*(module(tap) for tap in TAPS[1:])))
        assert _kinds(actual.worse) == [("missing", f"module {TAPS[0]}")]
        added = compare_reports(_one(*(module(tap) for tap in TAPS[1:])), _one())
        assert added.worse == []
        assert added.added == [f"hstu_tiny, fp32, tripy (portable, cpu): module {TAPS[0]}"]

    def test_a_verdict_of_a_module(self):
        actual = compare_reports(_one(module("m")), _one(module("m", isolated=None)))
        assert _kinds(actual.worse) == [("missing", "verdict on m alone")]

    def test_a_check_a_runner_a_precision_a_case(self):
        assert _kinds(compare_reports(_one(), _one(checks={})).worse) == [
            ("missing", "check incremental.current")
        ]
        alone = made_reports.report((reference(),))
        assert _kinds(compare_reports(_one(), alone).worse) == [("missing", "runner tripy")]
        assert _kinds(compare_reports(made_reports.passing(), _one()).worse) == [
            ("missing", "precision fp16"), ("missing", "precision bf16")
        ]  # fmt: skip
        case = _one().cases[0]
        other = case.model_copy(update={"case": case.case.model_copy(update={"name": "other"})})
        two = _one().model_copy(update={"cases": (case, other)})
        assert _kinds(compare_reports(two, _one()).worse) == [("missing", "case other")]


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("PASS", "FAIL", 1),
        ("PASS", "INSENSITIVE", 1),
        ("INSENSITIVE", "FAIL", 1),
        ("FAIL", "PASS", 0),
        ("FAIL", "FAIL", 0),
    ],
)
def test_verdicts(before, after, worse):
    actual = compare_reports(_one(verdict=before), _one(verdict=after))
    assert _kinds(actual.worse) == [("verdict", "whole model")] * worse
    assert len(actual.better) == (before == "FAIL" and after == "PASS")


def test_a_runner_that_no_longer_runs():
    crashed = made_reports.without_verdict("tripy", "CRASHED", "why")
    actual = compare_reports(_one(), made_reports.report((reference(), crashed)))
    assert [(c.what, c.old, c.new) for c in actual.worse] == [("whole model", "PASS", "CRASHED")]


def test_a_failure_comes_with_its_module_and_the_gravest_first():
    actual = compare_reports(made_reports.passing(), made_reports.failing())
    assert actual.worse[0].kind == "verdict"
    assert ("verdict", CULPRIT) in _kinds(actual.worse)
    kinds = [change.kind for change in actual.worse]
    assert kinds == sorted(kinds, key=["verdict", "missing", "error", "latency"].index)
    assert str(summary(actual)).startswith(f"WORSE: {len(actual.worse)} regressions; ")


def test_one_of_a_kind_is_no_plural():
    one = Changes(errors=1, latencies=1)
    end = "1 error compared, 0 of them changed; 1 latency compared; 0 improvements."
    assert str(summary(one)) == f"NO REGRESSION: {end}"
    one.worse = compare_reports(made_reports.passing(), made_reports.failing()).worse[:1]
    assert str(summary(one)) == f"WORSE: 1 regression; {end}"


class TestNotComparable:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"weights_digest": "f" * 64}, "hstu_tiny: not the same weights"),
            ({"batches": made_reports.BATCHES[1:]}, "hstu_tiny: not the same inputs"),
        ],
    )
    def test_other_weights_or_inputs(self, changes, reason):
        with pytest.raises(UserError, match=reason):
            compare_reports(_one(), _case(_one(), **changes))

    def test_nothing_in_common(self):
        with pytest.raises(UserError, match="no case in common"):
            compare_reports(_one(), _one().model_copy(update={"cases": ()}))

    def test_one_of_two_cases(self):
        case = _one().cases[0]
        other = case.model_copy(update={"case": case.case.model_copy(update={"name": "other"})})
        moved = other.model_copy(update={"weights_digest": "f" * 64})
        before, after = (_one().model_copy(update={"cases": (case, second)}) for second in (other, moved))
        actual = compare_reports(before, after)
        assert actual.not_comparable == ["other: not the same weights"]
        assert str(summary(actual)).startswith("INCOMPLETE: ")


class TestCommand:
    @pytest.fixture
    def saved(self, tmp_path):
        def save(name, report):
            (tmp_path / name).mkdir()
            path = tmp_path / name / "report.json"
            path.write_text(report.model_dump_json())
            return path

        return save

    def test_no_regression(self, command, saved):
        path = saved("a", made_reports.passing())
        ended = command("compare", path, path.parent)
        assert ended.code == 0, ended
        assert ended.words == (
            "NO REGRESSION: 42 errors compared, 0 of them changed; 3 latencies compared; 0 improvements."
        )

    def test_a_regression(self, command, saved):
        ended = command("compare", saved("a", made_reports.passing()), saved("b", made_reports.failing()))
        assert ended.code == 1
        assert CULPRIT in ended.out
        assert "WORSE: " in ended.out

    def test_hostile_names_are_no_markup(self, command, saved):
        hostile = _one(module("[red]m[/red]", alone=0.1)), _one(module("[red]m[/red]", alone=0.9))
        ended = command("compare", *(saved(str(n), entry) for n, entry in enumerate(hostile)))
        assert ended.code == 1
        assert "[red]m[/red] alone" in ended.out

    def test_a_part_that_cannot_be_compared(self, command, saved):
        case = _one().cases[0]
        other = case.model_copy(update={"case": case.case.model_copy(update={"name": "other"})})
        moved = other.model_copy(update={"weights_digest": "f" * 64})
        paths = (
            saved(entry.weights_digest[0], _one().model_copy(update={"cases": (case, entry)}))
            for entry in (other, moved)
        )
        ended = command("compare", *paths)
        assert ended.code == 2
        assert "not comparable: other: not the same weights" in ended.out

    def test_what_is_no_report(self, refused, tmp_path, saved):
        good = saved("good", made_reports.passing())
        assert "none.json cannot be read (No such file or directory)" in refused(
            "compare", good, tmp_path / "none.json"
        )
        (tmp_path / "text").write_text("{}")
        assert "is not a report of schema" in refused("compare", tmp_path / "text", good)
        message = refused("compare", good, good, "--case", "hstu_tiny")
        assert message.startswith(
            "compare: --case is no option of this verb; leave it out; it belongs to run, "
        )
        other = saved("other", _case(_one(), weights_digest="f" * 64))
        assert "cannot be compared: hstu_tiny: not the same weights" in refused("compare", good, other)


class TestOtherPrecisions:
    """Later precisions of a run have its first batch alone."""

    BATCHES = made_reports.BATCHES

    def _ran(self, first, *others):
        batches = tuple(
            batch.model_copy(update={"precisions": (first, *others) if number == 0 else (first,)})
            for number, batch in enumerate(self.BATCHES)
        )
        precisions = tuple(
            PrecisionReport(precision=name, runners=_one().cases[0].precisions[0].runners)
            for name in (first, *others)
        )
        return made_reports.report(batches=batches, precisions=precisions)

    def test_a_precision_with_the_same_batches_is_compared(self):
        alone, two = self._ran("fp32"), self._ran("fp32", "fp16")
        actual = compare_reports(alone, two)
        assert (actual.worse, actual.not_comparable) == ([], [])
        assert actual.errors > 0
        assert actual.added == ["hstu_tiny: precision fp16"]

    def test_a_precision_with_other_batches_is_not(self):
        first, behind = self._ran("fp16"), self._ran("fp32", "fp16")
        with pytest.raises(UserError, match="hstu_tiny, fp16: not the same batches"):
            compare_reports(first, behind)

    def test_no_precision_in_common(self):
        with pytest.raises(UserError, match=r"hstu_tiny: no precision in common \(fp32 and fp16\)"):
            compare_reports(self._ran("fp32"), self._ran("fp16"))
