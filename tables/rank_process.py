"""The process of one rank: it loads its shards, meets the other ranks, and runs a program."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.execution import fork_server
from tables.exchange import RankTables, load
from tables.interface import Tables
from tables.peer import PeerTables
from tables.shards import check_probes
from tables.store import Manifest

READY, DONE, REFUSED, FAILED = "ready", "done", "refused", "failed"
"""First words of a rank's answers."""
START = 600.0
"""Longest seconds of the start of all ranks: each reads its shards, and meets the others."""


@dataclass(frozen=True)
class Setup:
    """All that a rank needs to start.

    Attributes:
        manifest: The store's manifest, which the shards are compared with.
        rank: The rank.
        device: `cpu`, or `cuda` for the GPU of the rank's number.
        thorough: See `tables.shards.open_shard`.
        meeting: File at which the ranks meet.
        log: File of the rank's output.
        threads: Number of its threads.
        seconds: Longest time that a rank waits for another in a lookup; at the start it is at least `START`.
        program: `module:function`, called with the rank's tables, its pipe and `arguments`.
        arguments: Values that pickle.
        engine: One of `ENGINES`.
    """

    manifest: Manifest
    rank: int
    device: str
    thorough: bool
    meeting: Path
    log: Path
    threads: int
    seconds: float
    program: str
    arguments: tuple[Any, ...]
    engine: str


ENGINES: dict[str, type[RankTables | PeerTables]] = {"exchange": RankTables, "peer": PeerTables}
"""Engines of a rank by name: rows come by all-to-all, or are read in the memory of the other ranks."""


def call(tables: Tables, pipe: Connection, program: str, arguments: tuple[Any, ...]) -> None:
    """The program of `run`: send the result of a function."""
    answer(pipe, _function(program)(tables, *arguments))


def answer(pipe: Connection, result: Any) -> None:
    """Send an answer from a rank's program, see `Ranks.answers`."""
    pipe.send((DONE, result))


def rank_process(setup: Setup, pipe: Connection, environment: dict[str, str]) -> None:
    """Run a rank until the program that started it says that it may end, see `Ranks`."""
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(setup.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    fork_server.own_group()
    torch.set_num_threads(setup.threads)
    try:
        tables = _join(setup)
        pipe.send((READY, None))
        _function(setup.program)(tables, pipe, *setup.arguments)
    except UserError as error:
        _report(pipe, REFUSED, error)
    except raisable() as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        _report(pipe, FAILED, f"{type(error).__name__}: {lines[0] if lines else 'no message'}")
    # Others may still read from this rank: it ends when the program that started it says so.
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    # The group's own end waits for ranks that may be gone.
    os._exit(0)


def _join(setup: Setup) -> Tables:
    """Load the shards, meet the other ranks, and look up the known rows."""
    manifest, rank = setup.manifest, setup.rank
    device = torch.device("cpu" if setup.device == "cpu" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shards = load(manifest, rank, device, setup.thorough)
    # All ranks are on this machine, whose name may not resolve to an address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=dist.FileStore(str(setup.meeting), manifest.ranks),
        rank=rank,
        world_size=manifest.ranks,
        timeout=timedelta(seconds=max(START, setup.seconds)),
    )
    tables = ENGINES[setup.engine](manifest, rank, shards, device)
    check_probes(tables, manifest)
    return tables


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _report(pipe: Connection, word: str, payload: object) -> None:
    with contextlib.suppress(OSError):
        pipe.send((word, payload))
