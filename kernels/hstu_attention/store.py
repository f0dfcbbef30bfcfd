"""Schedules that a search chose, in a file: each kind of call on each kind of GPU is searched once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch

from kernels.hstu_attention.call_kind import key_of
from kernels.hstu_attention.interface import check_layout
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.schedule_checks import fault_of
from kernels.hstu_attention.schedules import Schedule
from kernels.hstu_attention.search import search_schedule

FORMAT = "kernels.hstu_attention schedules, 1"
_FIX = "delete the file, or name another one, and search again"


class ScheduleStore:
    """Schedules by the kind of a call, read from a JSON file at once and written after each search.

    A file may serve several GPUs and processes: a write keeps the entries that others have written.
    """

    def __init__(self, path: Path | str) -> None:
        """Read `path`; without a file there, the store is empty.

        Raises:
            ValueError: the file is no store or damaged, or its folder is missing; with the fix.
            OSError: it cannot be read.
        """
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"path={str(self.path)!r}: its folder is missing; create it")
        self._schedules = _read(self.path)

    def schedule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        offsets: torch.Tensor,
        max_seq_len: int,
        mask: ResearchMask | ProductionMask,
        *,
        dot_precision: str = "ieee",
    ) -> Schedule:
        """The schedule of this kind of call, which `search.search_schedule` chooses at the first one.

        Two calls are of one kind if `key_of` names them alike.

        Raises:
            ValueError, RuntimeError: see `search.search_schedule`; with a stored schedule nothing is timed.
            OSError: the file cannot be written.
        """
        call = Call(q, k, v, offsets, max_seq_len, mask)
        check_layout(call, "triton", dot_precision)
        key = key_of(call, dot_precision)
        if key not in self._schedules:
            self._schedules[key] = search_schedule(*call, dot_precision=dot_precision)
            self._write()
        return self._schedules[key]

    def _write(self) -> None:
        self._schedules = _read(self.path) | self._schedules
        entries = {key: asdict(self._schedules[key]) for key in sorted(self._schedules)}
        text = json.dumps({"format": FORMAT, "schedules": entries}, indent=1) + "\n"
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Schedule]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, no JSON ({error}); {_FIX}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: no store of schedules, which has format {FORMAT!r}; {_FIX}")
    entries = content.get("schedules")
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: damaged, schedules is no object; {_FIX}")
    return {key: _schedule(path, key, entry) for key, entry in entries.items()}


def _schedule(path: Path, key: str, entry: object) -> Schedule:
    names = {field.name for field in fields(Schedule)}
    if not isinstance(entry, Mapping) or set(entry) != names:
        raise ValueError(f"{path}: damaged, the entry {key!r} has not the fields {sorted(names)}; {_FIX}")
    schedule = Schedule(**entry)
    if fault := fault_of(schedule):
        raise ValueError(f"{path}: damaged, the entry {key!r}: {fault}; {_FIX}")
    return schedule
