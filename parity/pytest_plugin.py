"""The plugin of pytest: the fixture `parity`, the items of `@parity.case`, and `--parity-report`.

It is loaded in every session of an environment with the engine, and therefore imports the engine late.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.api import Result
    from parity.case import Case
    from parity.report.schema import ModuleReport, Report, RunnerReport

MODEL = "model"
"""Name of the item of the model's outputs and of checks that no module has."""
_REPORTS = pytest.StashKey[list["Report"]]()
_SENT = "parity_reports"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("parity").addoption(
        "--parity-report", metavar="DIR", type=Path, help="Folder for the report on all comparisons."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORTS] = []


class Checker:
    """The fixture `parity`: comparisons whose reports are in `--parity-report`."""

    def __init__(self, reports: list[Report]) -> None:
        self._reports = reports

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
        result = self.compare(*models, **options)
        result.raise_if_failed()
        return result

    def compare(self, *models: Any, **options: Any) -> Result:
        """The result of `check`, also of a port that does not pass."""
        from parity.api import check, compare
        from parity.case import Case

        judge = check if models and isinstance(models[0], Case) else compare
        result = judge(*models, **options)
        self._reports.append(result.report)
        return result


@pytest.fixture
def parity(pytestconfig: pytest.Config) -> Checker:
    """Comparisons of Tripy models with PyTorch models: `parity.check(torch_model, port, inputs)`."""
    return Checker(pytestconfig.stash[_REPORTS])


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> pytest.Collector | None:
    if not isinstance(collector, pytest.Module) or "parity_mark" not in getattr(obj, "__dict__", {}):
        return None
    # An imported case belongs to its own file.
    if getattr(obj, "__module__", None) != collector.obj.__name__:
        return None
    return CaseItems.from_parent(collector, name=name, make=obj)


class CaseItems(pytest.Collector):
    """The items of one decorated function or class: one a module and precision."""

    def __init__(self, *, make: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._make, self._mark = make, make.parity_mark

    @functools.cached_property
    def case(self) -> Case:
        """The case. Raises `UserError` where the function returns something else."""
        from parity.base.errors import UserError
        from parity.case import Case

        case = self._make()
        if not isinstance(case, Case):
            raise UserError(
                "parity.case", case, f"is the result of {self.name}, and no case", "return a Case"
            )
        return case

    @functools.cached_property
    def result(self) -> Result:
        """The judged run of the case, which the first item starts."""
        return Checker(self.config.stash[_REPORTS]).compare(
            self.case, precisions=self._mark.precisions, runners=self._mark.runners
        )

    def collect(self) -> Iterator[pytest.Item]:
        paths = [
            path for path, module in self.case.build_reference().named_modules() if path and _runs(module)
        ]
        for precision in self._mark.precisions:
            for path in (*paths, MODEL):
                yield ModuleItem.from_parent(self, name=f"{precision}-{path}", precision=precision, path=path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        return _message(excinfo) or super().repr_failure(excinfo)


class ModuleItem(pytest.Item):
    """The verdict on one module in one precision, or on the model's outputs."""

    def __init__(self, *, precision: str, path: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._precision, self._path = precision, path

    def runtest(self) -> None:
        assert isinstance(self.parent, CaseItems)
        (case,) = self.parent.result.report.cases
        reports = next(p.runners for p in case.precisions if p.precision == self._precision)
        for report in reports:
            if report.runner != "torch":
                _judge(report, self._path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        return _message(excinfo) or super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''} {self.name}"


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
            raise ParityError(f"{module.tap} ({module.kind}) diverges on its own: {module.isolated.reason}")
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
    return any(_item_of(module) == path for module in runner.modules if module.kind != "unknown")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the reports of a worker of pytest-xdist."""
    from parity.report.schema import Report

    sent = getattr(node, "workeroutput", {}).get(_SENT, ())
    node.config.stash[_REPORTS] += [Report.model_validate_json(text) for text in sent]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report of all comparisons, or send the reports to the process that does."""
    reports, folder = session.config.stash[_REPORTS], session.config.getoption("--parity-report")
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_SENT] = [report.model_dump_json() for report in reports]
    elif folder is not None and reports:
        from parity.report.files import joined, write_again

        write_again(joined(reports, "pytest"), folder)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    folder = config.getoption("--parity-report")
    if folder is not None:
        count = len(config.stash[_REPORTS])
        path = folder / "report.html" if count else "not written"
        terminalreporter.write_line(f"parity report of {count} comparison{'s' * (count != 1)}: {path}")
