"""The plugin of pytest, by pytest itself: the fixture, one item a module and precision, the report."""

import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import metadata

import pytest

# A session inside a session forgets its imports, and some libraries refuse to be imported twice.
import torch._dynamo  # noqa: F401
import vl_convert  # noqa: F401

import parity.api
import parity.report.html  # noqa: F401
from parity.pytest_plugin import Reports
from tests.parity.made_reports import passing

pytest_plugins = ["pytester"]

MODELS = """
    import numpy as np
    import nvtripy as tp
    import torch

    import parity


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 8)])
            self.drop = torch.nn.Dropout()
            self.never = torch.nn.Linear(1, 1)
            self.last = torch.nn.Linear(8, 3)

        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.last(self.drop(x))


    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.layers = [tp.Linear(6, 8, dtype=dtype), tp.Linear(8, 8, dtype=dtype)]
            self.last = tp.Linear(8, 3, dtype=dtype)

        def forward(self, x):
            for layer in self.layers:
                x = tp.relu(layer(x))
            return self.last(x)


    class Doubling(tp.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)


    class Wrong(Port):
        def __init__(self, dtype):
            super().__init__(dtype)
            self.layers[1] = Doubling(8, 8, dtype=dtype)


    class WrongBehind(Port):
        def forward(self, x):
            return super().forward(x) + 1.0


    X = {"x": np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)}
    UNUSED = {"unused": ("never.*",)}
"""


@pytest.fixture
def run(pytester):
    """Runs pytest on a file with the models and some tests."""
    installed = any(
        entry.value == "parity.pytest_plugin" for entry in metadata.entry_points(group="pytest11")
    )

    def run(tests, *arguments):
        source = "\n".join([MODELS, tests])
        pytester.makepyfile(test_port=source)
        plugin = () if installed else ("-p", "parity.pytest_plugin")
        workers = () if "-n" in arguments else ("-p", "no:xdist")
        return pytester.runpytest_inprocess(*plugin, *workers, "-rsf", *arguments)

    return run


def test_the_fixture_checks_and_the_session_writes_one_report(run, pytester):
    result = run(
        """
    def test_right(parity):
        result = parity.check(Net(), Port, X, precisions=("fp32",), **UNUSED)
        assert result.passed


    def test_wrong(parity):
        parity.check(Net(), Wrong, X, precisions=("fp32",), **UNUSED)


    def test_case(parity):
        from parity import ModelPair

        parity.check(ModelPair(Net(), Port, X, **UNUSED), precisions=("fp16",))
""",
        "--parity-report",
        "pages",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*where: layers.1 (Linear) diverges on its own*",
            "*parity report of 3 comparisons: pages/report.html",
        ]
    )
    report = json.loads((pytester.path / "pages" / "report.json").read_text())
    assert [case["case"]["name"] for case in report["cases"]] == ["Net", "Net_2", "Net_3"]
    assert report["exit_code"] == 1
    assert (pytester.path / "pages" / "report.html").exists()


CASES = """
    @parity.case(precisions=("fp32",))
    def test_gpt():
        return parity.ModelPair(Net(), {port}, X, **UNUSED)
"""


def test_a_case_is_an_item_a_module_and_precision(run, pytester):
    result = run(CASES.format(port="Port"), "-v")
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "*fp32-layers.0 PASSED*",
            "*fp32-layers.1 PASSED*",
            "*fp32-drop SKIPPED*",
            "*fp32-never SKIPPED*",
            "*fp32-last PASSED*",
            "*fp32-model PASSED*",
            "SKIPPED*returns its input in evaluation",
            "SKIPPED*PyTorch never calls this module",
        ]
    )
    # Another report takes the earlier one's place.
    for _ in range(2):
        result = run(CASES.format(port="Port"), "--parity-report", "pages", "-k", "layers.0")
        result.assert_outcomes(passed=1, deselected=5)


@pytest.mark.parametrize(
    ("path", "place", "message"),
    [
        ("pages", "pages", "--parity-report: pages is no folder; name a new folder"),
        (
            "pages",
            "pages/inner",
            "--parity-report: pages/inner cannot be written (Not a directory); choose a folder",
        ),
        (
            "pages",
            "/proc/pages",
            "--parity-report: /proc/pages cannot be written (No such file or directory); ",
        ),
        *(
            (
                f"pages/{name}",
                "pages",
                f"report: pages/{name} is no earlier report of pytest, and stays; name",
            )
            for name in ("report.json", "report.html", "report.junit.xml", "report.md")
        ),
    ],
)
def test_a_report_replaces_no_file_of_others(run, pytester, path, place, message):
    file = pytester.path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    result = run(CASES.format(port="Port"), "--parity-report", place)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])
    assert file.read_text() == "mine"


def test_a_report_replaces_no_file_that_a_test_writes(run, pytester):
    result = run(
        """
    import pathlib


    def test_writes(parity):
        parity.check(Net(), Port, X, precisions=("fp32",), **UNUSED)
        pathlib.Path("pages").mkdir()
        pathlib.Path("pages/report.html").write_text("mine")
""",
        "--parity-report",
        "pages",
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--parity-report: report: *report.html is no earlier report of pytest*"])
    assert [path.name for path in (pytester.path / "pages").iterdir()] == ["report.html"]
    assert (pytester.path / "pages/report.html").read_text() == "mine"


def test_modules_behind_the_culprit_are_skipped(run):
    result = run(CASES.format(port="Wrong"), "-v")
    result.assert_outcomes(passed=1, failed=1, skipped=4)
    result.stdout.fnmatch_lines(
        [
            "*fp32-layers.0 PASSED*",
            "*fp32-layers.1 FAILED*",
            "*fp32-last SKIPPED*",
            "*where: layers.1 (Linear) diverges on its own*",
            "SKIPPED*downstream of layers.1",
        ]
    )


def test_wrong_code_behind_all_modules_fails_the_model(run):
    result = run(CASES.format(port="WrongBehind"), "-v")
    result.assert_outcomes(passed=3, failed=1, skipped=2)
    result.stdout.fnmatch_lines(["*fp32-model FAILED*", "*where: forward.output*"])


def test_a_port_that_raises_fails_the_model(run):
    raising = (
        CASES.format(port="Raising")
        + """
    class Raising(Port):
        def forward(self, x):
            raise RuntimeError("no such operation")
"""
    )
    result = run(raising, "-v")
    result.stdout.fnmatch_lines(["*fp32-model FAILED*", "*no such operation*"])
    assert result.ret == 1


def test_bad_use_is_a_message(run):
    result = run(
        """
    @parity.case
    def test_nothing():
        return None
"""
    )
    result.stdout.fnmatch_lines(
        [
            "*parity.case: None is the result of test_nothing, and no case; return a Case*",
        ]
    )
    result.assert_outcomes(errors=1)
    result = run(CASES.format(port="Port").replace(", **UNUSED", ""), "-k", "model")
    result.stdout.fnmatch_lines(
        ["weights: never.weight, never.bias are left over: no tensor of the port takes them*"]
    )
    result.assert_outcomes(failed=1, deselected=5)


def test_bad_use_and_a_failure_show_the_line_of_the_test_and_the_message_alone(run):
    """No code of the suite, no cause behind the message, and no object of ours in full."""
    misspelt = """{"y": X["x"]}, precisions=("fp32",), **UNUSED)"""
    result = run(
        f"""
    def test_checked(parity):
        parity.check(Net(), Port, {misspelt}


    def test_compared():
        parity.compare(Net(), Port, {misspelt}


    def test_pair():
        parity.ModelPair(Net(), Port, {{"y": X["x"]}})


    def test_raised():
        parity.compare(Net(), Wrong, X, precisions=("fp32",), **UNUSED).raise_if_failed()
"""
    )
    result.assert_outcomes(failed=4)
    lines = result.stdout.lines
    beginnings = [number for number, line in enumerate(lines) if line.startswith("____")]
    behind = (number for number, line in enumerate(lines) if line.startswith("===="))
    ends = [*beginnings[1:], next(number for number in behind if number > beginnings[-1])]
    for beginning, end in zip(beginnings, ends, strict=True):
        assert end - beginning <= 16, lines[beginning:end]
    text = "\n".join(lines)
    assert text.count("E       parity.base.errors.UserError: inputs: y do not fit forward(x)") == 3
    assert "where: layers.1 (Linear) diverges on its own" in text
    for hidden in ("def _check_arguments", "direct cause", "Result(report", "self ="):
        assert hidden not in text


def test_a_class_of_cases_is_decorated_in_its_own_file_only(run, pytester):
    pytester.makepyfile(test_other="from test_port import *")
    result = run(
        """
    @parity.case(precisions=("fp32",))
    class Small(parity.Case):
        name = "small"
        batch_size = 32
        unused = ("never.*",)

        def build_reference(self):
            return Net()

        def build_port(self, dtype):
            return Port(dtype)

        def make_inputs(self):
            x = np.random.default_rng(self.seed).standard_normal((self.batch_size, 6))
            return {"x": x.astype(np.float32)}
"""
    )
    result.assert_outcomes(passed=4, skipped=2)


WRONG_CASE = """
    @parity.case(precisions=("fp32",))
    def test_wrong():
        return parity.ModelPair(Net(), Wrong, X, **UNUSED)
"""


def test_a_decorated_function_never_passes_without_the_plugin(pytester):
    pytester.makepyfile(test_port="\n".join([MODELS, WRONG_CASE]))
    result = pytester.runpytest_inprocess("-p", "no:parity", "-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*parity.case: test_wrong runs as an ordinary test of pytest*"])


def test_a_decorated_method_never_passes(run):
    method = WRONG_CASE.replace("\n", "\n    ").replace("test_wrong()", "test_wrong(self)")
    result = run("    class TestPorts:" + method)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*decorate a function outside of classes*"])


@pytest.mark.parametrize("home", ["test_cases", "helpers"])
def test_an_imported_function_is_judged_once(run, pytester, home):
    """In its own file, or where that is no file of tests, in the file that imports it."""
    pytester.makepyfile(**{home: "\n".join([MODELS, WRONG_CASE])})
    result = run(f"    from {home} import test_wrong")
    # Three layers, two other modules and the model. Those behind the culprit are skipped.
    result.assert_outcomes(passed=1, failed=1, skipped=4)


def test_a_decorated_function_still_makes_its_case():
    assert parity.case(lambda: 3)() == 3
    assert parity.case(functools.partial(int, "4"))() == 4


# Inputs that differ in each process; one item at a time, so that each worker runs some of the case.
SHARED = """
    import pathlib
    import time

    NOW = {"x": np.random.default_rng(time.time_ns()).standard_normal((32, 6)).astype(np.float32)}


    def test_first(parity):
        parity.check(Net(), Port, X, precisions=("fp32",), **UNUSED)


    @parity.case(precisions=("fp32",))
    def test_gpt():
        return parity.ModelPair(Net(), Wrong, NOW, **UNUSED)


    def test_last(parity):
        parity.check(Net(), Port, X, precisions=("fp32",), name="Last", **UNUSED)
"""


MARKED = """
    import pytest


    @pytest.mark.skip(reason="never built")
    @parity.case(precisions=("fp32",))
    def test_skipped():
        raise KeyError("skipped")


    @parity.case(precisions=("fp32",))
    @pytest.mark.skipif(True, reason="no such machine")
    def test_skipped_here():
        raise KeyError("here")


    @parity.case(precisions=("fp32",))
    @pytest.mark.skipif(False, reason="another machine")
    def test_broken_here():
        raise KeyError("never skipped")


    @pytest.mark.xfail(reason="known")
    @parity.case(precisions=("fp32",))
    def test_known():
        return parity.ModelPair(Net(), Wrong, X, **UNUSED)


    @pytest.mark.slow
    @parity.case(precisions=("fp32",))
    def test_slow():
        return parity.ModelPair(Net(), Port, X, **UNUSED)
"""


def test_marks_of_a_function_are_those_of_its_items(run):
    result = run(MARKED, "-m", "not slow", "-rs")
    counts = result.parseoutcomes()
    assert counts["xfailed"] == 1
    assert counts["skipped"] >= 2
    assert counts["deselected"] >= 2
    # An item takes the place of a case that cannot be built, and fails where its condition does not hold.
    assert counts["failed"] == 1
    result.stdout.fnmatch_lines(["*KeyError*never skipped*", "*never built*", "*no such machine*"])


def test_a_mark_of_the_file_holds_for_its_cases(run):
    result = run(
        '    pytestmark = __import__("pytest").mark.skip(reason="all")\n' + CASES.format(port="Wrong")
    )
    counts = result.parseoutcomes()
    assert set(counts) <= {"skipped", "warnings"}
    assert counts["skipped"]


def test_a_condition_that_does_not_hold_hides_no_error(run):
    result = run(MARKED.replace("True, reason", "False, reason"), "-k", "skipped_here")
    result.assert_outcomes(failed=1, deselected=14)
    result.stdout.fnmatch_lines(["*KeyError: 'here'*"])


@pytest.mark.parametrize(
    ("mark", "parameters", "problem"),
    [
        ("", "tmp_path", "takes tmp_path"),
        ("@pytest.mark.parametrize('n', [1, 2])", "n", "takes n"),
        ("@pytest.mark.parametrize('n', [1, 2])", "", "is parametrized"),
    ],
)
def test_a_decorated_function_takes_no_parameters(run, mark, parameters, problem):
    result = run(
        f"""
    import pytest


    {mark}
    @parity.case(precisions=("fp32",))
    def test_each({parameters}):
        return parity.ModelPair(Net(), Port, X, **UNUSED)
"""
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"parity.case: test_each {problem}; write a function without parameters*"])
    result.stdout.no_fnmatch_line("*Error*marking.py*")


@pytest.mark.full
def test_workers_share_a_case(run, pytester):
    result = run(SHARED, "-v", "-n", "2", "--maxschedchunk", "1", "--parity-report", "pages")
    result.assert_outcomes(passed=3, failed=1, skipped=4)
    result.stdout.fnmatch_lines_random(
        ["*layers.1 (Linear) diverges on its own*", "SKIPPED*downstream of layers.1"]
    )
    workers = {line[1:4] for line in result.outlines if line.startswith("[gw") and "test_gpt" in line}
    assert workers == {"gw0", "gw1"}
    assert "parity report of 3 comparisons: pages/report.html" in result.stdout.str()
    report = json.loads((pytester.path / "pages" / "report.json").read_text())
    assert [case["case"]["name"] for case in report["cases"]] == ["Net", "Net_2", "Last"]


def named(name):
    """A report on one case."""
    whole = passing()
    (one,) = whole.cases
    return whole.model_copy(
        update={"cases": (one.model_copy(update={"case": one.case.model_copy(update={"name": name})}),)}
    )


def names(reports):
    return [case.case.name for report in reports for case in report.cases]


@pytest.fixture
def reports(tmp_path):
    """The reports of two workers, and of the process that starts them."""
    return [Reports(tmp_path) for _ in range(3)]


def test_one_worker_judges_and_the_other_waits(reports):
    one, other, session = reports
    started, may_end = threading.Event(), threading.Event()

    def judge():
        started.set()
        assert may_end.wait(60)
        return named("shared")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(one.once, 3, judge)
        assert started.wait(60)
        second = pool.submit(other.once, 3, lambda: pytest.fail("a second judgement"))
        assert wait([second], timeout=0.2).not_done
        may_end.set()
        assert names([first.result(), second.result()]) == ["shared"] * 2
    assert names(session.all()) == ["shared"]


def test_a_failed_judgement_leaves_its_place_free(reports):
    one, other, session = reports
    with pytest.raises(ZeroDivisionError):
        one.once(0, lambda: 1 / 0)
    other.once(0, lambda: named("second"))
    assert names(session.all()) == ["second"]


def test_reports_have_the_order_of_the_tests(reports):
    one, other, session = reports
    other.add(20, named("d"))
    one.add(3, named("b"))
    one.add(3, named("c"))
    other.add(0, named("a"))
    assert names(session.all()) == list("abcd")


def test_a_session_removes_its_own_folder_only(reports):
    own = Reports()
    assert len(own) == 0
    own.add(0, named("a"))
    own.remove()
    assert not own.all()
    reports[0].add(0, named("a"))
    reports[0].remove()
    assert len(reports[0]) == 1


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        ("parity.case(3)", "parity.case: 3 is no function and no class"),
        (
            "parity.case(precisions='bf16')",
            "precisions: bf16 is no sequence of names; give a tuple, such as ('fp32',)",
        ),
        ("parity.case(runners='x')", "runners: x is no sequence of names; give a tuple, such as ('tripy',)"),
    ],
)
def test_a_decorator_with_bad_arguments(decorate, message):
    with pytest.raises(parity.UserError) as caught:
        eval(decorate, {"parity": parity})
    assert message in str(caught.value)
