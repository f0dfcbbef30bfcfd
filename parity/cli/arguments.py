"""The checked options of the command line, and the request that they make."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError, check_names, require_once
from parity.base.files import called_in
from parity.base.locks import made
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS, Precision
from parity.base.precision_policy import read_policy
from parity.case import Case, CaseReference, Registry, load_case
from parity.execution.bounds import checked
from parity.execution.folder import has_content
from parity.execution.request import Request
from parity.inputs.prepared import require_names
from parity.runners import RUNNERS, TIMEOUT, default_runners

# The public configurations train and evaluate 128 users at a time.
RECORDED_BATCH = 128
MAX_TIME_LIMIT = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Arguments:
    """The options that select a run; None for an absent option.

    Attributes:
        registry: The cases by name.
        command: The command line, for the report.
        time_limit: Limit of one step of a runner, s.
        memory: Largest memory of the run, in gigabytes.
        cases, precision, runners: Lists of names, comma separated.
        models: List of import paths of cases, comma separated.
        batch, seed: Values in place of the case's own.
        data, weights, save, profile: Paths, see `Request`.
        policy: A policy file with schemes of quantisation.
    """

    registry: Registry
    command: str = ""
    time_limit: float = TIMEOUT
    memory: float | None = None
    cases: str | None = None
    models: str | None = None
    precision: str | None = None
    runners: str | None = None
    batch: int | None = None
    seed: int | None = None
    data: Path | None = None
    weights: Path | None = None
    save: Path | None = None
    profile: Path | None = None
    policy: Path | None = None

    def named_cases(self) -> list[Case]:
        """The named cases. Raises `UserError` for an unknown one, or for two of one name."""
        registered = [self.registry.load(name) for name in names("--case", self.cases)]
        targets = names("--model", self.models)
        cases = [*registered, *map(_of_model, targets)]
        require_names(cases)
        return cases

    def precisions(self) -> tuple[str, ...]:
        """The named precisions. Raises `UserError` for an unknown one."""
        return check_names("--precision", names("--precision", self.precision), PRECISIONS)

    def request(self) -> Request:
        """The requested run, with defaults for absent options.

        Raises:
            UserError: A bad option, or a folder that is not writable.
        """
        if not 0 < self.time_limit <= MAX_TIME_LIMIT:
            raise UserError(
                "--time-limit",
                self.time_limit,
                "is not a positive number of seconds, or more than a week",
                f"give more than 0 and at most {MAX_TIME_LIMIT:.0f}",
            )
        apart({"--save": self.save, "--profile": self.profile})
        here = Path.cwd()
        selected = self.named_cases() or self.default_cases()
        # Cases are imported, and may go to another folder.
        data, weights, save, profile, policy = (
            path and called_in(here, path)
            for path in (self.data, self.weights, self.save, self.profile, self.policy)
        )
        for option, value, least in (("--batch", self.batch, 1), ("--seed", self.seed, 0)):
            if value is not None and value < least:
                raise UserError(option, value, f"is below {least}", f"give at least {least}")
        batch = RECORDED_BATCH if self.data is not None and self.batch is None else self.batch
        if batch is not None or self.seed is not None:
            selected = [case.with_overrides(seed=self.seed, batch_size=batch) for case in selected]
        if policy is not None:
            selected = [case.quantised(_schemes(policy)) for case in selected]
        asked = check_names("--runners", names("--runners", self.runners), RUNNERS)
        runners = asked or default_runners()
        # Streams run the port on synthetic items, with initial weights.
        others = (self.data, self.weights, self.policy)
        return Request(
            cases=tuple(selected),
            precisions=self.precisions() or tuple(DEFAULT_PRECISIONS),
            runners=runners,
            runners_asked=bool(asked),
            data=data,
            checkpoint=weights,
            save=save,
            timeout=self.time_limit,
            command=self.command,
            streams="tripy" in runners and all(other is None for other in others),
            memory=checked(self.memory),
            rows=self.batch if self.data is None else None,
            profile=None if profile is None else writable("--profile", profile),
        )

    def one_of_each(self, verb: str, default: str = "") -> tuple[Case, Precision]:
        """The only case and the only precision of a verb; `default` is the precision where none is given.

        Raises:
            UserError: Another number of them is given.
        """
        cases, precisions = self.named_cases(), self.precisions() or tuple(filter(None, [default]))
        if (len(cases), len(precisions)) != (1, 1):
            given = f"{len(cases)} of --case and {len(precisions)} of --precision"
            problem = "are given, where one of each is taken"
            raise UserError(verb, given, problem, "give one --case and one --precision")
        return cases[0], PRECISIONS[precisions[0]]

    def default_cases(self) -> list[Case]:
        """The default cases of the registry; with data, those that read them. Raises `UserError` for none."""
        selected = [self.registry.load(case.name) for case in self.registry.cases() if case.default]
        if not selected:
            raise UserError(
                "--case", "no name", "is given, and no case is a default one", "name yours with --model"
            )
        if self.data is None:
            return selected
        # Cases that read this file. If there is none, the reader raises the explanation.
        return [case for case in selected if case.recognises(self.data)] or selected


def _of_model(target: str) -> Case:
    """The case of an import path. Raises `UserError`, with the option where the path is at fault."""
    try:
        return load_case(CaseReference(target=target))
    except UserError as error:
        if (error.field, error.value) != ("case", target):
            raise
        raise UserError("--model", error.value, error.problem, error.fix) from error


def _schemes(path: Path) -> dict[str, str]:
    """The schemes of a policy file. Raises `UserError` for precisions in it: a run has one at a time."""
    policy = read_policy(path)
    if policy.precisions:
        pattern, precision = next(iter(policy.precisions.items()))
        raise UserError(
            f"--policy[{pattern!r}]",
            precision,
            "is a precision, and a run judges all modules in one",
            "name it with --precision, or judge the policy with the verb precision",
        )
    return policy.schemes


def names(option: str, text: str | None) -> list[str]:
    """The names in a list; none for an absent option. Raises `UserError` for an empty or a doubled name."""
    if text is None:
        return []
    stripped = [name.strip() for name in text.split(",")]
    if not any(stripped):
        raise UserError(option, repr(text), "names nothing", "give a name, or leave the option out")
    if not all(stripped):
        raise UserError(option, repr(text), "has a comma without a name", "leave that comma out")
    require_once(option, stripped)
    return stripped


@contextmanager
def needing_port(runner: str = "tripy") -> Iterator[None]:
    """Raises `UserError` where the port cannot run: its packages are not installed, or the body says so."""
    from parity.runners import Unavailable, make_runner

    try:
        # All forms of the port need the same packages.
        make_runner("tripy")
        yield
    except Unavailable as error:
        fix = "run where the port can"
        raise UserError("runner", runner, f"is unavailable: {error}", fix) from error


def apart(folders: Mapping[str, Path | None]) -> None:
    """Compare new folders by option. Raises `UserError` if one is another one, or lies in it."""
    named = [(option, folder, folder.absolute()) for option, folder in folders.items() if folder is not None]
    for (one, _, outer), (option, folder, inner) in itertools.permutations(named, 2):
        if outer == inner or outer in inner.parents:
            problem = f"is or lies in the folder of {one}"
            raise UserError(option, str(folder), problem, "choose another folder")


def writable(option: str, folder: Path) -> Path:
    """The folder for new files. An absent one is tried, and stays absent.

    Raises:
        UserError: It is not writable, or holds anything.
    """
    try:
        full = has_content(folder)
        with made(folder):
            probe = folder / ".probe"
            if not full:
                probe.touch()
                probe.unlink()
    except (OSError, ValueError) as error:
        raise UserError(
            option,
            str(folder),
            f"cannot be written ({getattr(error, 'strerror', error)})",
            "choose another folder",
        ) from error
    if full:
        raise UserError(option, str(folder), "is not empty", "choose a new folder")
    return folder
