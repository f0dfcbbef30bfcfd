"""Mutants against tests, in forks of one collected session of pytest."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.tmpdir import tmppath_result_key

from benchmarks.mutation.mutants import Mutant, exchange, mutants_of, watched
from parity.base.files import replacing

FACTOR = 10
"""Time of a test with a mutant, in multiples of its time without."""
LEAST_LIMIT = 10
"""Seconds that each test may take."""
LONGEST = 120
"""Seconds that a test may take without a mutant."""


def fork(work: Callable[[], None]) -> int:
    """Run a function in a fork of this process, silently. Returns the fork's number."""
    child = os.fork()
    if not child:
        os.setpgrp()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        try:
            work()
        finally:
            os._exit(0)
    return child


def limit(seconds: int) -> None:
    """End this process after so many seconds of CPU time, or twelve times as many that pass."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(12 * seconds)


def passes(item: pytest.Item, following: pytest.Item | None = None) -> bool:
    """Whether a test passes. No report is written, which takes longer than most tests."""
    item._initrequest()
    item.stash[tmppath_result_key] = {"call": True}  # a report would set it
    passed = True
    try:
        item.ihook.pytest_runtest_setup(item=item)
        item.ihook.pytest_runtest_call(item=item)
    except pytest.skip.Exception:
        passed = True
    except BaseException:  # noqa: BLE001, an exit is a failure as well
        passed = False
    try:
        item.ihook.pytest_runtest_teardown(item=item, nextitem=following)
    except BaseException:  # noqa: BLE001
        return False
    finally:
        item._request, item.funcargs = None, None
    return passed


@dataclass(frozen=True)
class Trial:
    """A mutant and the tests that it meets, with the seconds that each may take."""

    mutant: Mutant
    tests: tuple[tuple[pytest.Item, int], ...]

    def meet(self, say: Callable[[str], None]) -> str:
        """The test that fails; empty if none does. `say` hears of every test that begins."""
        before = self.mutant.live.__code__, self.mutant.live.__defaults__, self.mutant.live.__kwdefaults__
        exchange(self.mutant.live, self.mutant.changed)
        following = [item for item, _ in self.tests[1:]]
        try:
            for (item, seconds), after in itertools.zip_longest(self.tests, following):
                say(item.nodeid)
                limit(seconds)
                if not passes(item, after):
                    return item.nodeid
        finally:
            live = self.mutant.live
            live.__code__, live.__defaults__, live.__kwdefaults__ = before
        return ""


class Driver:
    """The run as a plugin of pytest, in place of its loop over the tests.

    A fork tries mutant after mutant. It checks that the test that fails passes again without the mutant. If
    it does not, or if a mutant ends the fork, another one goes on. A mutant that survives has a fork of its
    own as well, where no cache holds a result from before.

    Args:
        output: File for the outcomes.
        files: Files with the mutants.
        watched: Files whose functions a test may enter.
        budget: Seconds of tests that a mutant meets.
    """

    def __init__(self, output: Path, files: Sequence[Path], watched: Sequence[Path], budget: float) -> None:
        self.output, self.files, self.watched, self.budget = output, files, watched, budget

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record what the tests enter, then try the mutants."""
        items = {item.nodeid: item for item in session.items}
        session.config._tmp_path_factory.getbasetemp()  # one folder, which all forks share
        gc.collect()
        gc.freeze()
        tests = self._entered(items)
        decided = self._decided()
        mutants = [mutant for path in self.files for mutant in mutants_of(path)]
        trials = [
            self._trial(mutant, items, tests)
            for mutant in mutants
            if decided.get(mutant.name) != mutant.digest
        ]
        print(f"{len(trials)} of {len(mutants)} mutants", file=sys.stderr, flush=True)
        while trials:
            trials = trials[self._try_some(trials) :]
        return True

    def _trial(self, mutant: Mutant, items: dict[str, pytest.Item], tests: dict[str, dict]) -> Trial:
        """A mutant with the fastest tests that enter its function, as many as the budget allows."""
        function = mutant.name.rpartition("__mutmut_")[0]
        entering = [name for name in items if function in tests[name]["entered"]]
        chosen, total = [], 0.0
        for name in sorted(entering, key=lambda name: tests[name]["seconds"]):
            total += tests[name]["seconds"]
            if chosen and total > self.budget:
                break
            chosen.append((items[name], int(max(LEAST_LIMIT, FACTOR * tests[name]["seconds"]))))
        return Trial(mutant, tuple(chosen))

    def _try_some(self, trials: Sequence[Trial]) -> int:
        """Try mutants in a fork until it ends. Returns the number of mutants with an outcome."""
        read, write = os.pipe()

        def work() -> None:
            def say(*words: object) -> None:
                os.write(write, (json.dumps(words) + "\n").encode())

            for number, trial in enumerate(trials):
                failed = trial.meet(lambda test, number=number: say(number, "begins", test))
                say(number, "ends", failed)
                if failed:
                    item, seconds = next(test for test in trial.tests if test[0].nodeid == failed)
                    limit(seconds)
                    passed = passes(item)
                    say(number, "again", passed)
                    if not passed:
                        return

        child = fork(work)
        os.close(write)
        done, began = 0, ""
        with os.fdopen(read) as stream:
            for number, word, text in map(json.loads, stream):
                if word == "begins":
                    began = text
                elif word == "ends" and not text:
                    self._alone(trials[number])
                    done, began = number + 1, ""
                elif word == "again":
                    if text:
                        self._write(trials[number], "killed", began)
                    else:
                        self._alone(trials[number])
                    done, began = number + 1, ""
        os.waitpid(child, 0)
        if done < len(trials) and began:
            self._alone(trials[done])
            done += 1
        if not done:
            raise RuntimeError(
                f"{trials[0].mutant.name}: no test began, so that no later fork gets on either"
            )
        return done

    def _alone(self, trial: Trial) -> None:
        """Try a mutant in a fork of its own."""
        if not trial.tests:
            self._write(trial, "not entered", "")
            return
        read, write = os.pipe()

        def work() -> None:
            failed = trial.meet(lambda test: os.write(write, (test + "\n").encode()) and None)
            os.write(write, f"{'killed' if failed else 'survived'}\n".encode())

        child = fork(work)
        os.close(write)
        with os.fdopen(read) as stream:
            *_, began, outcome = ["", "", *stream.read().splitlines()]
        os.waitpid(child, 0)
        if outcome not in ("killed", "survived"):
            self._write(trial, "timeout", outcome)
        else:
            self._write(trial, outcome, began if outcome == "killed" else "")

    def _write(self, trial: Trial, outcome: str, test: str) -> None:
        mutant = trial.mutant
        line = {"mutant": mutant.name, "digest": mutant.digest, "outcome": outcome, "test": test}
        if outcome in ("survived", "not entered"):
            line["change"] = mutant.change
        with self.output.open("a") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _decided(self) -> dict[str, str]:
        """Digests of the mutants that the output has as killed."""
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        found = {line["mutant"]: line for line in map(json.loads, lines)}
        killed = ("killed", "timeout")
        return {name: line["digest"] for name, line in found.items() if line["outcome"] in killed}

    def _entered(self, items: dict[str, pytest.Item]) -> dict[str, dict]:
        """The functions that each test enters, and its time; tests that fail in a fork are left out."""
        place = self.output.with_name(self.output.name + ".tests")
        known = json.loads(place.read_text()) if place.exists() else {}
        digests = {path: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in session_files(items)}
        new = [name for name in items if known.get(name, {}).get("digest") != digests[items[name].path]]
        with watched(self.watched, entered := set()):
            for file in digests:
                waiting = [items[name] for name in new if items[name].path == file]
                while waiting:
                    seen = self._enter(waiting, entered)
                    for item in waiting[: len(seen)]:
                        known[item.nodeid] = seen[item.nodeid] | {"digest": digests[file]}
                    waiting = waiting[len(seen) :]
                with replacing(place) as path:
                    path.write_text(json.dumps(known, indent=0))
        return {name: known[name] for name in items}

    def _enter(self, items: Sequence[pytest.Item], entered: set[str]) -> dict[str, dict[str, Any]]:
        """The functions that tests of a file enter, and their seconds, up to the first that ends the fork.

        A test that fails enters none. Every fixture is made anew for each test.
        """
        read, write = os.pipe()

        def work() -> None:
            for item in items:
                entered.clear()
                start = time.perf_counter()
                limit(LONGEST)
                passed = passes(item)
                seconds = round(time.perf_counter() - start, 3)
                facts = {"seconds": seconds, "entered": sorted(entered) if passed else []}
                os.write(write, (json.dumps({item.nodeid: facts}) + "\n").encode())

        child = fork(work)
        os.close(write)
        seen: dict[str, dict[str, Any]] = {}
        with os.fdopen(read) as stream:
            for line in stream:
                seen |= json.loads(line)
        os.waitpid(child, 0)
        if len(seen) < len(items):
            seen[items[len(seen)].nodeid] = {"seconds": 0.0, "entered": []}
        for name in (name for name, facts in seen.items() if not facts["entered"]):
            print(f"enters nothing, or fails: {name}", file=sys.stderr, flush=True)
        return seen


def session_files(items: dict[str, pytest.Item]) -> set[Path]:
    """The files of some tests."""
    return {item.path for item in items.values()}
