"""What the command line says, checked, and the request that it makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError, check_names
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS
from parity.case import Case, CaseReference, Registry
from parity.execution.request import Request
from parity.runners import RUNNERS, default_runners

# The public configurations train and evaluate 128 users at a time.
RECORDED_BATCH = 128
_TARGET = re.compile(r"[\w.]+:[\w.]+")
MAX_TIME_LIMIT = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Arguments:
    """The options that choose what runs, as they were given; None for those that were left out.

    Attributes:
        time_limit: Seconds that a step of a runner may take.
        command: The command line, for the report.
        registry: The cases that have names.
        cases, precision, runners: Lists of names, comma separated.
        batch, seed: In place of each case's own.
        data, weights, save, profile: Paths, see `Request`.
    """

    time_limit: float
    command: str
    registry: Registry
    cases: str | None = None
    precision: str | None = None
    runners: str | None = None
    batch: int | None = None
    seed: int | None = None
    data: Path | None = None
    weights: Path | None = None
    save: Path | None = None
    profile: Path | None = None

    def options(self) -> dict[str, object]:
        """What was given for each option, by its name."""
        return {
            "--case": self.cases,
            "--precision": self.precision,
            "--runners": self.runners,
            "--batch": self.batch,
            "--seed": self.seed,
            "--data": self.data,
            "--weights": self.weights,
            "--save": self.save,
            "--profile": self.profile,
        }

    def named_cases(self) -> list[Case]:
        """The cases that were named. Raises `UserError` for one that cannot be."""
        return [self._load(name) for name in dict.fromkeys(names("--case", self.cases))]

    def _load(self, name: str) -> Case:
        """A case of the registry, or of an import path such as `package.module:attribute`."""
        if _TARGET.fullmatch(name):
            return CaseReference(target=name).load()
        return self.registry.load(name)

    def precisions(self) -> tuple[str, ...]:
        """The precisions that were named. Raises `UserError` for one that is not known."""
        return check_names("--precision", names("--precision", self.precision), PRECISIONS)

    def request(self) -> Request:
        """The run that is asked for, with the defaults of what was left out.

        Raises:
            UserError: An option that cannot be followed, or a folder that cannot be written.
        """
        if not 0 < self.time_limit <= MAX_TIME_LIMIT:
            raise UserError(
                "--time-limit",
                self.time_limit,
                "is not a positive number of seconds, or more than a week",
                f"give more than 0 and at most {MAX_TIME_LIMIT:.0f}",
            )
        selected = self.named_cases() or self._default_cases()
        batch = RECORDED_BATCH if self.data is not None and self.batch is None else self.batch
        if batch is not None or self.seed is not None:
            selected = [case.with_overrides(seed=self.seed, batch_size=batch) for case in selected]
        asked = check_names("--runners", names("--runners", self.runners), RUNNERS)
        return Request(
            cases=tuple(selected),
            precisions=self.precisions() or tuple(DEFAULT_PRECISIONS),
            runners=asked or default_runners(),
            runners_asked=bool(asked),
            data=self.data,
            checkpoint=self.weights,
            save=self.save,
            timeout=self.time_limit,
            command=self.command,
            profile=None if self.profile is None else _made("--profile", self.profile),
        )

    def all_cases(self) -> list[Case]:
        """Every case that has a name."""
        return [self.registry.load(case.name) for case in self.registry.cases()]

    def _default_cases(self) -> list[Case]:
        selected = [self.registry.load(case.name) for case in self.registry.cases() if case.default]
        if self.data is None:
            return selected
        # Those that the file is for; where it is for none, reading it says why.
        return [case for case in selected if case.recognises(self.data)] or selected


def names(option: str, text: str | None) -> list[str]:
    """The names in a list; none if the option was left out. Raises `UserError` for a list of nothing."""
    found = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not found:
        raise UserError(option, repr(text), "names nothing", "give a name, or leave the option out")
    return found


def refuse_with(option: str, why: str, others: Mapping[str, object]) -> None:
    """Raise `UserError` if an option was given that has no meaning beside `option`."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UserError(
            option,
            "together with " + ", ".join(given),
            f"has no meaning: {why}",
            "leave the other options out",
        )


def _made(option: str, folder: Path) -> Path:
    """The folder, made if it is not there. Raises `UserError` where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            option, str(folder), f"cannot be written ({error.strerror})", "choose another folder"
        ) from error
    return folder
