"""The exit code and the last lines of each verb, by the outcome of its job; no runner starts."""

import contextlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases.registry import SHIPPED
from cases.shipped import load_case
from parity import pipeline
from parity.base.errors import UserError
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS
from parity.cli import streams
from parity.execution import fork_server
from parity.report import differences, files
from parity.runners import Unavailable
from parity.studies import shrink
from parity.studies.bisect import command as bisect_command
from parity.studies.fault_injection import command as fault_command
from parity.studies.precision_search import command as search_command
from parity.studies.streaming import command as stream_command
from tests.parity import made_reports
from tests.parity.cli.test_small_streams import BAD, GOOD

TINY = ("--case", "hstu_tiny")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder, in which no server of processes starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fork_server, "start", lambda cases="", one_thread=False: None)
    return tmp_path


@pytest.fixture
def stub(monkeypatch):
    """`stub(module, name, result)` replaces a function and returns the list of its calls."""

    def replace(module, name, result):
        calls = []

        def function(*arguments):
            calls.append(arguments)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(module, name, function)
        return calls

    return replace


def report(code):
    """A report whose results give the exit code."""
    if code != 2:
        return made_reports.failing() if code else made_reports.passing()
    missing = made_reports.without_verdict("onnxruntime", "UNAVAILABLE", "no library")
    runners = made_reports.reference(), made_reports.passing_port("fp32"), missing
    return made_reports.report(runners, exit_code=2).model_copy(
        update={"requested_runners": ("onnxruntime",)}
    )


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("verb", ["run", "replay", "resume"])
def test_a_run_ends_with_its_report_s_code(command, stub, folder, verb, code):
    calls = stub(pipeline, verb, report(code))
    ended = command(verb, *(TINY if verb == "run" else ("old",)))
    assert ended.code == code
    assert len(calls) == 1
    line = ended.out.splitlines()[-1]
    if verb == "resume":
        # The report lies in the run's folder, written there by the pipeline.
        assert line == "report: old/report.json"
        assert list(folder.iterdir()) == []
    else:
        (written,) = folder.glob("parity_reports/*/report.json")
        assert line == f"report: {written.relative_to(folder)}"
        assert files.read_report(written).exit_code == code


@pytest.mark.parametrize("verb", ["run", "replay", "resume"])
def test_a_run_shows_every_module_if_asked(command, stub, verb):
    stub(pipeline, verb, report(0))
    options = TINY if verb == "run" else ("old",)
    plain, verbose = command(verb, *options), command(verb, *options, "-v")
    assert len(verbose.out.splitlines()) > len(plain.out.splitlines())


def test_a_run_gets_the_request_and_writes_where_it_saves(command, stub, folder):
    """The pipeline writes there, and the verb nothing."""
    calls = stub(pipeline, "run", report(0))
    ended = command("run", *TINY, "--save", "out")
    ((request, advance, small_streams),) = calls
    assert (request.save, [case.name for case in request.cases]) == (Path("out"), ["hstu_tiny"])
    assert callable(advance)
    assert small_streams is streams.judge_small_streams
    assert ended.out.splitlines()[-1] == "report: out/report.json"
    assert list(folder.iterdir()) == []


def test_a_saved_run_and_the_command_line_reach_the_pipeline(command, stub, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/parity", "replay", "my run"])
    ((folder, typed, advance),) = _calls(command, stub(pipeline, "replay", report(0)), "replay", "my run")
    assert (folder, typed) == (Path("my run"), "parity replay 'my run'")
    assert callable(advance)
    ((folder, advance, small_streams, memory),) = _calls(
        command, stub(pipeline, "resume", report(0)), "resume", "my run", "--memory", "0.5"
    )
    assert memory == 0.5e9
    assert folder == Path("my run")
    assert callable(advance)
    assert small_streams is streams.judge_small_streams


def _calls(command, calls, *arguments):
    command(*arguments)
    return calls


def test_bad_input_is_the_code_2_of_every_verb(command, stub):
    problem = UserError("field", "value", "is bad", "mend it")
    for module, name, arguments in (
        (pipeline, "run", ("run", *TINY)),
        (pipeline, "replay", ("replay", "old")),
        (pipeline, "resume", ("resume", "old")),
        (differences, "compare_reports", ("compare", "a", "b")),
        (bisect_command, "bisect", ("bisect", "a", "b", "--", "true")),
        (shrink, "shrink", ("shrink", "out", *TINY, "--precision", "fp32")),
        (search_command, "run", ("precision", *TINY)),
        (fault_command, "self_test", ("self-test", *TINY)),
        (stream_command, "judge_streams", ("stream", *TINY)),
    ):
        stub(files, "read_report", None)
        stub(module, name, problem)
        ended = command(*arguments)
        assert ended.code == 2, arguments
        assert (ended.out, ended.err) == ("", "error: field: value is bad; mend it\n")


def test_a_list_is_the_code_0(command):
    assert command("list").code == 0


CHANGES = {
    (False, False): 0,
    (False, True): 2,
    (True, False): 1,
    (True, True): 1,
}


@pytest.mark.parametrize(("worse", "lost"), CHANGES)
def test_a_comparison_ends_with_1_if_something_is_worse(command, monkeypatch, folder, worse, lost):
    """Something worse tells more than a runner without a counterpart."""
    read = []
    monkeypatch.setattr(files, "read_report", read.append)
    changes = SimpleNamespace(worse=worse, not_comparable=lost)
    monkeypatch.setattr(differences, "compare_reports", lambda old, new: changes)
    monkeypatch.setattr("parity.report.terminal_differences.render_changes", lambda changes: "all changes")
    (folder / "new").mkdir()
    ended = command("compare", "old.json", "new")
    assert (ended.code, ended.out) == (CHANGES[worse, lost], "all changes\n")
    assert read == [Path("old.json"), Path("new/report.json")]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_failure_that_shrinks_is_the_code_1(command, stub, folder, seed):
    case = load_case("hstu_tiny")
    named = []
    failure = SimpleNamespace(describe=lambda case: named.append(case.name) or "the module [x] fails")
    calls, written = stub(shrink, "shrink", failure), stub(shrink, "write", None)
    options = () if seed is None else ("--seed", seed)
    ended = command("shrink", "small", *TINY, "--precision", "bf16", *options)
    assert ended.code == 1
    assert ended.out.splitlines() == ["the module [x] fails", "python small/reproduce.py"]
    ((seeded, precision, advance),) = calls
    assert (seeded.name, seeded.seed, precision) == (
        "hstu_tiny",
        case.seed if seed is None else seed,
        PRECISIONS["bf16"],
    )
    assert callable(advance)
    assert (written, named) == ([(failure, Path("small"))], ["hstu_tiny"])


@pytest.mark.parametrize(
    "options",
    [
        (),
        TINY,
        ("--precision", "fp32"),
        (*TINY, "--precision", "fp32,bf16"),
        ("--case", "hstu_tiny,dlrm_tiny", "--precision", "fp32"),
    ],
)
def test_several_cases_or_precisions_do_not_shrink(refused, options):
    text = refused("shrink", "small", *options)
    one = "are given, where one of each is taken; give one --case and one --precision"
    assert re.fullmatch(rf"shrink: \d+ of --case and \d+ of --precision {one}", text), text


@pytest.mark.parametrize("code", [0, 1])
def test_a_precision_search_ends_with_its_report_s_code(command, stub, monkeypatch, folder, code):
    found = SimpleNamespace(exit_code=code)
    calls, written = stub(search_command, "run", found), stub(search_command, "write", None)
    shown = stub(search_command, "render", "the [b]front[/b]")
    monkeypatch.setattr("sys.argv", ["parity", "precision"])
    ended = command("precision", *TINY, "--budget", "0.5", "--policy", "p.yaml", "--save", "out")
    assert ended.code == code
    assert ended.out.splitlines() == ["the front", "report: out/precision.json"]
    ((request, budget, policy, advance, quantise),) = calls
    assert ([case.name for case in request.cases], request.command) == (["hstu_tiny"], "parity precision")
    assert (budget, policy, callable(advance), quantise) == (0.5, Path("p.yaml"), True, False)
    assert (written, shown) == ([(found, Path("out"))], [(found,)])
    command("precision", *TINY)
    assert calls[-1][1:3] == (1e-3, None)
    command("precision", *TINY, "--quantise")
    assert calls[-1][4] is True
    assert written[-1][1].parent == Path("parity_reports").absolute()


@pytest.mark.parametrize("code", [0, 1])
def test_a_self_test_ends_with_its_result_s_code(command, stub, code):
    result = SimpleNamespace(exit_code=code)
    calls, shown = stub(fault_command, "self_test", result), stub(fault_command, "render_self_test", "counts")
    ended = command("self-test", *TINY, "--precision", "fp16", "--share", "0.5", "--save", "out")
    assert ended.code == code
    assert ended.out.splitlines() == ["counts", "table: out/table.md"]
    ((plan, folder, advance),) = calls
    assert ([case.name for case in plan.cases], plan.precisions) == (["hstu_tiny"], ("fp16",))
    assert (plan.share, plan.clean_runs, plan.operators) == (0.5, 1000, "")
    assert (folder, callable(advance), shown) == (Path("out"), True, [(result,)])


def test_a_self_test_takes_the_default_cases_and_all_faults(command, stub):
    calls = stub(fault_command, "self_test", SimpleNamespace(exit_code=0))
    stub(fault_command, "render_self_test", "")
    command("self-test", "--faults", "w", "--clean-runs", "3")
    ((plan, folder, _),) = calls
    # The others take hours or need a GPU.
    assert [case.name for case in plan.cases] == [case.name for case in SHIPPED.cases() if case.default]
    assert plan.precisions == tuple(DEFAULT_PRECISIONS)
    assert (plan.share, plan.clean_runs, plan.operators) == (1.0, 3, "w")
    assert folder == Path("parity_reports/self_test")


@pytest.mark.parametrize(
    ("verdicts", "code"), [([GOOD], 0), ([GOOD, BAD], 1), ([BAD, GOOD], 1), ([GOOD, GOOD], 0), ([BAD], 1)]
)
def test_a_stream_ends_with_1_if_one_side_fails(command, stub, verdicts, code):
    calls = stub(stream_command, "judge_streams", iter(verdicts))
    ended = command("stream", *TINY)
    assert ended.code == code
    assert ended.out.splitlines() == [stream_command.HEADER, *(verdict.line() for verdict in verdicts)]
    ((case, *arguments),) = calls
    assert case.name == "hstu_tiny"
    assert arguments == [tuple(DEFAULT_PRECISIONS), None, 200, None]


def test_a_stream_has_the_seed_of_its_case(command, stub):
    calls = stub(stream_command, "judge_streams", iter([GOOD]))
    assert command("stream", "--case", "hstu_large_24").code == 0
    seed = load_case("hstu_large_24").seed
    assert calls[0][0].seed == seed != 0


def test_options_of_a_stream_reach_it(command, stub):
    calls = stub(stream_command, "judge_streams", iter([GOOD]))
    options = ("--precision", "fp16", "--steps", "3", "--capacity", "7", "--seed", "4", "--weights", "w.pt")
    assert command("stream", *TINY, *options).code == 0
    assert calls[0][0].seed == 4
    assert calls[0][1:] == (("fp16",), Path("w.pt"), 3, 7)


@pytest.mark.parametrize(("options", "count"), [((), 0), (("--case", "hstu_tiny,hstu_tiny_rated"), 2)])
def test_a_stream_is_for_one_case(refused, options, count):
    assert refused("stream", *options) == (
        f"stream: {count} cases are given, where one is taken; give one --case or --model"
    )


@pytest.mark.parametrize("module", [search_command, stream_command])
def test_a_study_of_the_port_is_refused_where_the_port_cannot_run(refused, monkeypatch, module):
    verb = "stream" if module is stream_command else "precision"
    with _unavailable(monkeypatch, module):
        assert refused(verb, *TINY) == ("runner: tripy is unavailable: no Tripy here; run where the port can")


@contextlib.contextmanager
def _unavailable(monkeypatch, module):
    """An import of the module raises `Unavailable`."""
    package, _, name = module.__name__.rpartition(".")

    class Finder:
        def find_spec(self, fullname, path=None, target=None):
            if fullname == module.__name__:
                raise Unavailable("no Tripy here")

    with monkeypatch.context() as context:
        context.delitem(sys.modules, module.__name__)
        context.delattr(f"{package}.{name}")
        context.setattr("sys.meta_path", [Finder(), *sys.meta_path])
        yield
