"""The plugin of pytest: the fixture `parity`, the items of `@parity.case`, and `--parity-report`.

It is loaded in every session of an environment with the engine, and therefore imports the engine late.

Workers of pytest-xdist share the reports of a session: one of them judges a case, and its items have the same
verdicts in all of them.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.api import Result
    from parity.case import Case
    from parity.report.schema import ModuleReport, Report, RunnerReport

MODEL = "model"
"""Name of the item of the model's outputs and of checks that no module has."""
_REPORTS = pytest.StashKey["Reports"]()
_FOLDER = "parity_reports"
_COMMAND = "pytest"
"""Command of a session in its report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("parity").addoption(
        "--parity-report", metavar="DIR", type=Path, help="Folder for the report on all comparisons."
    )


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--parity-report")
    if folder is not None:
        if folder.exists():
            _require_own(folder)
        _require_writable(folder)
    shared = getattr(config, "workerinput", {}).get(_FOLDER)
    config.stash[_REPORTS] = Reports(None if shared is None else Path(shared))


def _require_own(folder: Path) -> None:
    """Raises `pytest.UsageError` for a folder that the session's report cannot be written to."""
    from parity.base.errors import UserError
    from parity.report.files import require_own

    if not folder.is_dir():
        raise pytest.UsageError(f"--parity-report: {folder} is no folder; name a new folder")
    try:
        require_own(folder, _COMMAND)
    except UserError as error:
        raise pytest.UsageError(f"--parity-report: {error}") from error


def _require_writable(folder: Path) -> None:
    """Raises `pytest.UsageError` for a folder that cannot be made or written, and leaves nothing behind."""
    from parity.base.locks import made

    try:
        with made(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = f"{folder} cannot be written ({error.strerror})"
        raise pytest.UsageError(
            f"--parity-report: {problem}; choose a folder that you can write to"
        ) from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the folder of the session's reports to a worker of pytest-xdist."""
    node.workerinput[_FOLDER] = str(node.config.stash[_REPORTS].folder)


class Reports:
    """The reports of a session, in files. Workers of pytest-xdist have the folder of the process above.

    A report's place is the number of its test among the session's, which all workers agree on.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self._shared, self._own = shared, ""

    @property
    def folder(self) -> Path:
        if self._shared is not None:
            return self._shared
        self._own = self._own or tempfile.mkdtemp(prefix="parity_reports_")
        return Path(self._own)

    def add(self, place: int, report: Report) -> None:
        """Keep a report on a comparison, of which a test makes any number."""
        number = len(list(self.folder.glob(f"{place:06d}_*.json")))
        self._write(self.folder / f"{place:06d}_{number:03d}.json", report)

    def once(self, place: int, judge: Callable[[], Report]) -> Report:
        """The only report of a place. One process makes it; the others wait for it.

        The system frees the lock of a process that crashes, and another one makes the report.
        """
        import fcntl

        from parity.report.files import read_report

        path = self.folder / f"{place:06d}_000.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._write(path, judge())
        return read_report(path)

    def all(self) -> list[Report]:
        """The reports in the order of the tests."""
        from parity.report.files import read_report

        return [read_report(path) for path in self._paths()]

    def __len__(self) -> int:
        return len(self._paths())

    def remove(self) -> None:
        """Remove the folder, unless it is another process's."""
        if self._own:
            shutil.rmtree(self._own)
            self._own = ""

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.json")) if self._own or self._shared else []

    def _write(self, path: Path, report: Report) -> None:
        from parity.base.files import replacing

        with replacing(path) as temporary:
            temporary.write_text(report.model_dump_json())


class Checker:
    """The fixture `parity`: comparisons whose reports are in `--parity-report`."""

    def __init__(self, keep: Callable[[Report], None]) -> None:
        self._keep = keep

    def check(self, *models: Any, **options: Any) -> Result:
        """Fail the test unless the port passes.

        Args:
            models: A case, or the PyTorch model, the port and the inputs of `parity.compare`.
            options: Those of `parity.check` or of `parity.compare`.

        Returns:
            The result.

        Raises:
            ParityError: The port does not pass.
            UserError: See `parity.compare`.
        """
        __tracebackhide__ = True
        result = self.compare(*models, **options)
        result.raise_if_failed()
        return result

    def compare(self, *models: Any, **options: Any) -> Result:
        """The result of `check`, also of a port that does not pass."""
        __tracebackhide__ = True
        from parity.api import check, compare
        from parity.case import Case

        judge = check if models and isinstance(models[0], Case) else compare
        result = judge(*models, **options)
        self._keep(result.report)
        return result


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Checker:
    """Comparisons of Tripy models with PyTorch models: `parity.check(torch_model, port, inputs)`."""
    place = request.session.items.index(request.node)
    return Checker(functools.partial(request.config.stash[_REPORTS].add, place))


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> pytest.Collector | list[pytest.Item] | None:
    if not isinstance(collector, pytest.Module) or "parity_mark" not in getattr(obj, "__dict__", {}):
        return None
    if obj.__module__ != collector.obj.__name__ and _is_of_tests(obj.__module__, collector.config):
        # An imported case belongs to its own file.
        return []
    return CaseItems.from_parent(collector, name=name, make=obj)


def _is_of_tests(module: str, config: pytest.Config) -> bool:
    """Whether pytest collects a module's file."""
    name = Path(getattr(sys.modules.get(module), "__file__", None) or "").name
    return any(fnmatch.fnmatch(name, pattern) for pattern in config.getini("python_files"))


class CaseItems(pytest.Collector):
    """The items of one decorated function or class: one a module and precision, each with its marks."""

    def __init__(self, *, make: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._make, self._mark = make, make.parity_mark
        for mark in getattr(make, "pytestmark", ()):
            self.own_markers.append(mark)
            self.keywords[mark.name] = mark

    @functools.cached_property
    def case(self) -> Case:
        """The case. Raises `UserError` where the function returns something else."""
        from parity.base.errors import UserError
        from parity.case import Case

        needed = [
            parameter.name
            for parameter in inspect.signature(self._make).parameters.values()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        if needed or self.get_closest_marker("parametrize"):
            problem = f"takes {', '.join(needed)}" if needed else "is parametrized"
            fix = "write a function without parameters for each case: fixtures and parametrize have no place"
            raise UserError("parity.case", self.name, problem, fix)
        case = self._make()
        if not isinstance(case, Case):
            raise UserError(
                "parity.case", case, f"is the result of {self.name}, and no case", "return a Case"
            )
        return case

    @functools.cached_property
    def report(self) -> Report:
        """The report on the case, which the first item makes."""
        from parity.api import check

        place = next(number for number, item in enumerate(self.session.items) if item.parent is self)
        return self.config.stash[_REPORTS].once(
            place, lambda: check(self.case, self._mark.precisions, self._mark.runners).report
        )

    def collect(self) -> Iterator[pytest.Item]:
        try:
            paths = [] if self.get_closest_marker("skip") else self._paths()
        except Exception:
            # Where the case cannot be built, a condition may skip its item. Else the item raises this again.
            if self.get_closest_marker("skipif") is None:
                raise
            paths = []
        for precision in self._mark.precisions:
            for path in (*paths, MODEL):
                yield ModuleItem.from_parent(self, name=f"{precision}-{path}", precision=precision, path=path)

    @functools.cached_property
    def line(self) -> int:
        """The line of the function or class in its file, counted from 0; 0 where Python does not tell it."""
        try:
            return inspect.findsource(inspect.unwrap(self._make))[1]
        except OSError:
            return 0

    def _paths(self) -> list[str]:
        """The paths of the reference's modules that have an item."""
        modules = self.case.build_reference().named_modules()
        return [path for path, module in modules if path and _runs(module)]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        return _message(excinfo) or super().repr_failure(excinfo)


class ModuleItem(pytest.Item):
    """The verdict on one module in one precision, or on the model's outputs."""

    def __init__(self, *, precision: str, path: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._precision, self._path = precision, path

    def runtest(self) -> None:
        assert isinstance(self.parent, CaseItems)
        (case,) = self.parent.report.cases
        reports = next(p.runners for p in case.precisions if p.precision == self._precision)
        for report in reports:
            if report.runner != "torch":
                _judge(report, self._path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        return _message(excinfo) or super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        assert isinstance(self.parent, CaseItems)
        # Without a line pytest cannot skip an item by a mark.
        return self.path, self.parent.line, f"{self.parent.name} {self.name}"


def _runs(module: Any) -> bool:
    """Whether a module of PyTorch has a forward, which containers of modules lack."""
    import torch

    return type(module).forward is not torch.nn.Module.forward or "__call__" in vars(type(module))


def _message(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """The text of an error that says it all without a traceback, or nothing."""
    from parity.api import ParityError
    from parity.base.errors import UserError

    return str(excinfo.value) if isinstance(excinfo.value, (ParityError, UserError)) else ""


def _judge(runner: RunnerReport, path: str) -> None:
    """Pass, fail or skip the item of a path by a runner's report."""
    from parity.api import ParityError, details
    from parity.capture.names import TapName
    from parity.verdict.diagnosis import fails_alone

    if runner.verdict == "NONE":
        if path == MODEL:
            raise ParityError(f"{runner.label} has no verdict: {runner.status}: {runner.reason}")
        pytest.skip(f"{runner.label} has no verdict")
    own = [module for module in runner.modules if _item_of(module) == path]
    culprit = runner.diagnosis.tap if runner.diagnosis is not None else ""
    place = next((_item_of(module) for module in runner.modules if module.tap == culprit), "")
    place = place or TapName.parse(culprit).path or MODEL
    if runner.verdict != "PASS" and path == (place if _is_item(runner, place) else MODEL):
        raise ParityError("\n".join(details(runner)))
    behind = False
    for module in own:
        alone = module.isolated is not None and module.isolated.status == "FAIL"
        if alone and not place.startswith(f"{path}."):
            reason = module.isolated.reason
            raise ParityError(f"{module.tap} ({module.kind}) {fails_alone(reason)}: {reason}")
        behind = behind or module.status in ("FAIL", "INSENSITIVE")
    if behind:
        pytest.skip(f"downstream of {culprit}")
    _skip_absent(own)


def _skip_absent(own: Sequence[ModuleReport]) -> None:
    """Skip a module without a verdict."""
    if not own:
        pytest.skip("PyTorch never calls this module")
    if own[0].gap:
        pytest.skip(own[0].gap)


def _item_of(module: ModuleReport) -> str:
    """The path of the item of a tap."""
    from parity.verdict.judgement import MODEL_OUTPUT

    return MODEL if module.kind == MODEL_OUTPUT else module.path


def _is_item(runner: RunnerReport, path: str) -> bool:
    """Whether a path of a runner's report has an item of its own."""
    from parity.case.pairing import UNKNOWN

    return any(_item_of(module) == path for module in runner.modules if module.kind != UNKNOWN)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report of all comparisons."""
    reports, folder = session.config.stash[_REPORTS], session.config.getoption("--parity-report")
    if folder is not None and not hasattr(session.config, "workerinput") and len(reports):
        from parity.base.errors import UserError
        from parity.base.files import called_in
        from parity.report.files import joined, require_own, write_again

        # A test may have gone to another folder, or written there.
        folder = called_in(session.config.invocation_params.dir, folder)
        try:
            require_own(folder, _COMMAND)
            write_again(joined(reports.all(), _COMMAND), folder)
        except (UserError, OSError) as error:
            pytest.exit(f"--parity-report: {error}", returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    folder = config.getoption("--parity-report")
    if folder is not None:
        count = len(config.stash[_REPORTS])
        path = folder / "report.html" if count else "not written"
        terminalreporter.write_line(f"parity report of {count} comparison{'s' * (count != 1)}: {path}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _REPORTS in config.stash:
        config.stash[_REPORTS].remove()
