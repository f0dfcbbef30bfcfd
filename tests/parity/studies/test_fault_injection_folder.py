"""The folder of a campaign, its tables, and its processes."""

import io
import itertools
import multiprocessing
import os
import time

import pytest
from rich.console import Console

from cases.shipped import load_case
from parity.base.code import present_code
from parity.base.errors import UserError
from parity.case import CaseReference
from parity.studies.fault_injection import campaign, store, workers
from parity.studies.fault_injection import clean as clean_runs
from parity.studies.fault_injection.command import SelfTest, render_self_test
from parity.studies.fault_injection.faults import CleanFinding, Finding, Outcome
from parity.studies.fault_injection.table import markdown, summarise
from parity.studies.packages import packages_of


def finding(**changes):
    facts = {
        "case": "dlrm_tiny",
        "precision": "fp32",
        "operator": "weight: scaled",
        "target": "w",
        "detail": "small",
        "homes": ["bot_l.0"],
        "outcome": Outcome.DETECTED,
        "kind": "module",
        "named": "bot_l.0",
        "localised": True,
        "margin": 3.0,
    }
    return Finding(**{**facts, **changes})


def clean(alarm=""):
    """A run without a fault."""
    return CleanFinding(
        number=0,
        case="c",
        precision="fp32",
        runner="tripy",
        seed=1,
        batch_size=2,
        reference=CaseReference(target="cases:c"),
        alarm=alarm,
    )


ELSEWHERE = finding(localised=False)
MISSED = finding(outcome=Outcome.MISSED, localised=False)
BELOW = finding(outcome=Outcome.BELOW_LIMIT, localised=False)


@pytest.mark.parametrize(
    ("findings", "runs", "code"),
    [
        ([finding()], [], 0),
        ([finding()], [clean(), clean()], 0),
        ([finding(), BELOW], [], 0),
        ([finding()] * 99 + [ELSEWHERE], [], 0),
        ([finding()] * 98 + [ELSEWHERE], [], 1),
        ([finding()] * 1000 + [MISSED], [], 1),
        ([finding()], [clean(), clean("why"), clean()], 1),
    ],
)
def test_a_campaign_fails_by_a_missed_fault_a_wrong_place_or_a_false_alarm(findings, runs, code):
    assert SelfTest(findings, runs).exit_code == code


def test_counts_add_up():
    actual = [
        finding(),
        finding(detail="middle", localised=False, margin=2.0),
        finding(detail="large", outcome=Outcome.MISSED, localised=False, margin=0.5),
        finding(operator="source: constant", outcome=Outcome.EQUIVALENT, localised=False),
        finding(operator="source: constant", detail="x", outcome=Outcome.BROKEN, localised=False),
    ]
    rows = summarise(actual)
    total = rows["all"]
    assert (total.injected, total.broken, total.equivalent, total.detected, total.missed) == (5, 1, 1, 2, 1)
    assert rows["weight: scaled"].detection == pytest.approx(2 / 3)
    assert rows["weight: scaled"].localisation == 0.5
    assert total.worst_margin == 2.0
    text = markdown(
        actual,
        [clean("why")],
    )
    row = ("weight: scaled", "3", "0", "0", "0", "0", "2", "1", "66.67", "66.67", "50.00", "2")
    assert row in [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in text.splitlines()]
    assert "why" in text


def test_the_terminal_shows_each_count_under_its_name():
    actual = [
        finding(operator="source: integer off by one"),
        finding(outcome=Outcome.BELOW_LIMIT, localised=False),
        finding(outcome=Outcome.EQUIVALENT, localised=False),
        finding(outcome=Outcome.MISSED, localised=False),
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_self_test(SelfTest(actual, [])))
    text = console.export_text()
    rows = [line.split() for line in text.splitlines()]
    assert rows[1] == "operator injected left out detected missed localised margin".split()
    assert rows[-5] == "all 4 2 1 1 100.0% 3".split()
    assert "left out: 0 cannot be made, 1 equivalent, 0 asked elsewhere, 1 below the limit" in text
    assert "source: integer off by one" in text
    assert "…" not in text


def test_findings_survive_a_kill_in_the_middle_of_a_line(tmp_path):
    path = store.opened(tmp_path / "campaign", {"port": "1"}) / "findings.jsonl"
    lines = store.Store(path, Finding)
    lines.add(finding())
    lines.close()
    path.write_text(path.read_text() + '{"case": "dlrm_ti')
    again = store.Store(path, Finding)
    assert again.lines == [finding()]
    again.add(finding(detail="large"))
    again.close()
    stored = store.Store(path, Finding)
    stored.close()
    assert [line.detail for line in stored.lines] == ["small", "large"]


def _said(number):
    yield number


def test_no_process_is_left_when_all_is_done():
    assert sorted(workers.reports([(_said, (number,)) for number in range(3)])) == [0, 1, 2]
    assert multiprocessing.active_children() == []


class _Stays(Exception):
    """In place of a thread that waits for the end of the program."""


def test_a_report_that_comes_while_the_program_ends_is_none(monkeypatch):
    def stay():
        raise _Stays

    monkeypatch.setattr(workers, "stay_if_ending", stay)
    with pytest.raises(_Stays):
        next(workers.reports([(_said, (0,))]))


def _waits_for_ever(number):
    yield os.getpid()
    time.sleep(600)


@pytest.mark.parametrize("count", [1, 7, 10**11, 10**40])
def test_runs_without_a_fault_take_no_memory_before_they_run(count, tmp_path, monkeypatch):
    tasks = []
    monkeypatch.setattr(workers, "reports", lambda all_tasks: tasks.extend(all_tasks) or ())
    monkeypatch.setattr(workers, "cores", lambda: 3)
    plan = campaign.Plan((load_case("dlrm_tiny"),), ("fp32",), 0.0, count)
    (tmp_path / "campaign").mkdir()
    assert campaign.run(plan, tmp_path / "campaign", lambda *_: None) == ([], [])
    shares = [numbers for _, (numbers, *_) in tasks]
    if count < 10:
        assert sorted(itertools.chain(*shares)) == list(range(count))
    assert max(share[-1] for share in shares if share) == count - 1


def test_a_run_without_a_fault_runs_once(monkeypatch):
    monkeypatch.setattr(clean_runs, "clean_run", lambda number, *_: number)
    assert list(campaign._run_clean(range(0, 9, 2), frozenset({4}), (), ("fp32",))) == [0, 2, 6, 8]


def _campaign(said):
    for process in workers.reports([(_waits_for_ever, (0,))]):
        said.put(process)


@pytest.mark.full
def test_processes_of_a_killed_campaign_end():
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    parent = context.Process(target=_campaign, args=(said,))
    parent.start()
    while said.empty():
        assert parent.is_alive(), f"the campaign ended with {parent.exitcode} before it said its process"
        time.sleep(0.1)
    process = said.get(timeout=600)
    parent.kill()
    parent.join()
    for _ in range(3000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(process, 9)
    pytest.fail("a process of the killed campaign is still there")


def test_findings_about_other_code_are_not_added_to(tmp_path):
    store.opened(tmp_path, {"port": "1"})
    store.opened(tmp_path, {"port": "1"})
    with pytest.raises(UserError, match="holds findings about other code") as refused:
        store.opened(tmp_path, {"port": "2"})
    assert refused.value.problem.startswith("holds")


def test_the_digest_is_of_the_code_of_a_case(tmp_path, monkeypatch):
    (tmp_path / "small_port").mkdir()
    source = tmp_path / "small_port" / "__init__.py"
    source.write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = present_code({"small_port"})
    assert present_code({"small_port"}) == before != present_code({"small_port", "cases"})
    source.write_text("x = 2")
    assert present_code({"small_port"}) != before
    packages = packages_of(load_case("dlrm_tiny"))
    assert {"cases", "parity", "reference", "tripy_port"} <= packages


def test_a_line_that_no_campaign_wrote_is_refused(tmp_path):
    path = store.opened(tmp_path / "campaign", {"port": "1"}) / "findings.jsonl"
    path.write_text('{"case": 3}\n')
    with pytest.raises(UserError, match="has a line that no campaign wrote"):
        store.Store(path, Finding)


def test_letters_of_no_operator_are_refused_before_the_runs_without_a_fault(tmp_path, monkeypatch):
    work = campaign._Work("fp32", (), (), frozenset({"weight: scaled", "by hand: sum"}))
    monkeypatch.setattr(workers, "reports", lambda tasks: [work])
    plan = campaign.Plan((load_case("dlrm_tiny"),), ("fp32",), 1.0, 1000, operators="wieght")
    with pytest.raises(UserError, match="wieght begins no operator's name; .* by hand: sum, weight: scaled"):
        campaign.run(plan, tmp_path / "campaign", lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_is_refused_keeps_earlier_findings(tmp_path):
    folder = store.opened(tmp_path / "campaign", {"port": "1"})
    (folder / "findings.jsonl").write_text("{}\n")
    with pytest.raises(UserError), store.without_empty(folder):
        raise UserError("--faults", "x", "begins no operator's name", "give another")
    assert sorted(path.name for path in folder.iterdir()) == ["campaign.json", "findings.jsonl"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="something else"):
        store.opened(tmp_path, {"port": "1"})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_share_that_leaves_no_fault_is_refused_and_leaves_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "_faults", lambda *_: [])
    few = ("--share", "1e-300", "--clean-runs", "0", "--save", tmp_path / "out")
    ended = command("self-test", "--case", "dlrm_tiny", "--precision", "fp32", *few)
    assert ended.code == 2, ended
    assert "--share: 1e-300 leaves no fault" in ended.err
    assert list(tmp_path.iterdir()) == []
