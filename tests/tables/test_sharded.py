"""Shards in processes: right rows and sums, faults with the names of rank and table, and no process left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import UserError
from tables.rank_process import ENGINES
from tables.ranks import RankFailure, run
from tables.sharded import ShardedTables
from tests.locations import ROOT
from tests.tables.faults import FAULTS, store_with
from tests.tables.pooling import assert_pooled, drawn_bags
from tests.tables.stores import numbers, store

# One process starts the ranks of this module.
pytestmark = pytest.mark.xdist_group("tables")

TABLES = numbers()
LAYOUTS = {"rows on 3": (3, "rows"), "tables on 2": (2, "tables")}
PATIENCE = 300.0
"""Seconds after which a test gives up. No test judges a time: it follows from the machine's load."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stores")
    return {name: store(folder / name, TABLES, *layout) for name, layout in LAYOUTS.items()}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def engines(folders, engine):
    opened = {name: ShardedTables(folder, engine=engine) for name, folder in folders.items()}
    yield opened
    for tables in opened.values():
        tables.close()


@pytest.fixture
def two_ranks(folders, engine):
    """Ranks for a test that ends them."""
    with ShardedTables(folders["tables on 2"], engine=engine) as tables:
        yield tables


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def called_until(call: Callable[[], object]) -> None:
    """Call it until it raises, for a while."""
    latest = time.monotonic() + PATIENCE
    while time.monotonic() < latest:
        call()


def assert_gone(processes: list[int]) -> None:
    latest = time.monotonic() + PATIENCE
    while any(map(is_running, processes)):
        assert time.monotonic() < latest, "a process stays"
        time.sleep(0.01)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TABLES)
@given(ids=st.lists(st.integers(0, 10**9), max_size=60))
@settings(max_examples=20, deadline=None)
def test_rows_are_equal_bit_for_bit(engines, layout, name, ids):
    wanted = torch.tensor(ids, dtype=torch.int64) % len(TABLES[name])
    rows = engines[layout].lookup(name, wanted)
    assert rows.dtype == TABLES[name].dtype
    assert torch.equal(rows, TABLES[name][wanted])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TABLES)
@given(seed=st.integers(0, 2**32), bags=st.integers(0, 6), longest=st.integers(0, 60), weighted=st.booleans())
@settings(max_examples=20, deadline=None)
def test_pooled_sums_are_within_the_bound(engines, layout, name, seed, bags, longest, weighted):
    rows = TABLES[name]
    assert_pooled(engines[layout], name, rows, *drawn_bags(len(rows), seed, bags, longest, weighted))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_takes_ids_of_any_shape(engines, layout):
    ids = torch.arange(24).view(2, 3, 4)
    assert torch.equal(engines[layout].lookup("item", ids), TABLES["item"][ids])
    assert torch.equal(engines[layout].lookup("item", ids.int()[:, 1:2]), TABLES["item"][ids[:, 1:2]])


def test_a_bad_id_is_refused_and_the_ranks_go_on(engines):
    tables = engines["rows on 3"]
    with pytest.raises(UserError, match="is no row of 0..6"):
        tables.lookup("user", torch.tensor([7]))
    tables.ranks.check()
    assert torch.equal(tables.lookup("user", torch.tensor([6])), TABLES["user"][[6]])


def test_each_rank_has_rows_for_its_own_ids(folders, engine):
    results = run(folders["rows on 3"], "tests.tables.programs:own_rows", ("item",), engine=engine)
    assert [len(ids) for ids, _, _ in results] == [0, 10, 20]
    for ids, rows, sums in results:
        wanted = TABLES["item"][torch.tensor(ids, dtype=torch.int64)].double()
        assert torch.equal(torch.tensor(rows, dtype=torch.float64).view_as(wanted), wanted)
        assert len(sums) == len(ids) // 5
        expected = wanted.view(-1, 5, 9).sum(1)
        # A rounding to float16, and up to five additions in float32.
        bound = 2.0**-11 * expected.abs() + 5 * 2.0**-24 * wanted.abs().view(-1, 5, 9).sum(1)
        assert ((torch.tensor(sums, dtype=torch.float64).view_as(expected) - expected).abs() <= bound).all()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_shard_s_fault_ends_the_start_with_rank_and_table(tmp_path, fault, engine):
    with pytest.raises(UserError, match=FAULTS[fault]) as caught:
        ShardedTables(store_with(fault, tmp_path), engine=engine)
    assert caught.value.field == "rank 1, table item"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_a_killed_rank_is_named_and_no_process_stays(two_ranks, rank, number):
    processes = two_ranks.ranks.processes
    two_ranks.ranks.check()
    os.kill(processes[rank], number)
    with pytest.raises(RankFailure, match=f"^rank {rank} .*died of signal {number.name}") as caught:
        called_until(lambda: two_ranks.lookup("item", torch.arange(50)))
    assert caught.value.rank == rank
    assert caught.value.tables == (("item",) if rank == 0 else ("user", "category"))
    assert_gone(processes)
    with pytest.raises(RankFailure, match=f"^rank {rank} "):
        two_ranks.lookup("item", torch.arange(5))


def test_a_rank_that_dies_idle_is_noticed_by_a_check(two_ranks):
    os.kill(two_ranks.ranks.processes[1], signal.SIGKILL)
    with pytest.raises(RankFailure, match=r"^rank 1 .*during an idle moment"):
        called_until(two_ranks.ranks.check)
    assert_gone(two_ranks.ranks.processes)


@pytest.mark.parametrize(
    ("program", "arguments", "problem"),
    [
        ("dies", (1, signal.SIGKILL), r"^rank 1 .* died of signal SIGKILL"),
        pytest.param(
            "dies", (0, signal.SIGTERM), r"^rank 0 .* died of signal SIGTERM", marks=pytest.mark.full
        ),
        pytest.param(
            "exits", (1,), r"^rank 1 .* died of exit code 3 .*no space is left", marks=pytest.mark.full
        ),
        ("fails", (0,), r"^rank 0 .* raised .*the dense part is broken"),
    ],
    ids=["killed", "terminated", "exit", "error"],
)
def test_a_rank_that_fails_ends_the_others(folders, program, arguments, problem, engine):
    with pytest.raises(RankFailure, match=problem):
        run(folders["tables on 2"], f"tests.tables.programs:{program}", arguments, engine=engine)


def test_a_bad_id_of_one_rank_ends_the_others(folders, engine):
    with pytest.raises(UserError, match="1000000 is no row of 0..100"):
        run(folders["tables on 2"], "tests.tables.programs:asks_for_a_bad_row", (1,), engine=engine)


def test_with_peers_one_rank_may_call_alone(folders):
    sums = run(folders["rows on 3"], "tests.tables.programs:one_calls_alone", (1,), engine="peer")
    assert sums == [0.0, TABLES["item"].double().sum().item(), 0.0]


def test_an_unknown_engine_is_refused(folders):
    with pytest.raises(UserError, match="engine: pears is not known; did you mean 'peer'"):
        ShardedTables(folders["rows on 3"], engine="pears")


@pytest.mark.full
def test_a_rank_that_gives_no_answer_is_named(folders):
    with pytest.raises(RankFailure, match=r"gave no answer .* within 4 s \(late ranks: 1\)") as caught:
        run(folders["tables on 2"], "tests.tables.programs:hangs", (1,), seconds=4.0)
    assert caught.value.rank == 1


def test_closed_tables_leave_no_process(folders):
    with ShardedTables(folders["tables on 2"]) as tables:
        processes = tables.ranks.processes
        assert all(map(is_running, processes))
    assert_gone(processes)
    with pytest.raises(ValueError, match="closed"):
        tables.lookup("item", torch.tensor([0]))


def test_gpus_that_are_not_there_are_refused(folders, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="PyTorch finds no GPU here"):
        ShardedTables(folders["rows on 3"], "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="needs 3 GPUs, and this machine has 2"):
        ShardedTables(folders["rows on 3"], "cuda")


@pytest.mark.full
def test_ranks_end_with_a_program_that_is_killed(folders, tmp_path_factory):
    """SIGKILL leaves the program no moment to end its ranks: the system does. Its temporary files stay."""
    # Its sockets have short paths.
    environment = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("t"))}
    program = (
        "import sys, time; from pathlib import Path; from tables.sharded import ShardedTables\n"
        "tables = ShardedTables(Path(sys.argv[1]))\n"
        "sys.stdout.write(' '.join(map(str, tables.ranks.processes)) + '\\n'); sys.stdout.flush()\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(folders["rows on 3"])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as started:
        processes = [int(word) for word in started.stdout.readline().split()]
        assert len(processes) == 3
        assert all(map(is_running, processes))
        started.kill()
    assert_gone(processes)
