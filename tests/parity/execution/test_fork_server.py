"""The server of runner processes: its imports leave CUDA alone, which a forked process could not use then.

It collects no garbage, and its processes do.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from parity.base.onednn import INSTRUCTIONS, without_tiles
from parity.execution import fork_server
from parity.execution.commands import Commands
from parity.execution.worker import RunnerProcess
from tests.locations import ROOT

_IMPORTS = """
import importlib
import torch

def touch(*arguments):
    raise AssertionError("CUDA is touched")

for name in ("is_available", "device_count", "init", "_lazy_init", "current_stream"):
    setattr(torch.cuda, name, touch)
torch._C._cuda_getDeviceCount = touch
from parity.execution import fork_server
from cases.registry import SHIPPED
modules = [*fork_server._MODULES, SHIPPED.module]
for module in modules:
    importlib.import_module(module)
print(*modules)
"""


def test_the_servers_imports_do_not_touch_cuda():
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "parity.runners.torch.eager" in done.stdout
    assert "cases.shipped" in done.stdout


def test_processes_of_the_server_collect_garbage(tmp_path):
    process = RunnerProcess("torch", tmp_path / "log", 60.0, {})
    try:
        assert process.request(Commands.call, "gc:isenabled")
        assert process.request(Commands.call, "gc:get_freeze_count")
    finally:
        process.stop()


_FIRST_COLLECTION = """
import gc
from parity.execution import fork_server
gc.disable()
imported = [[] for _ in range(100_000)]
left_out = []
gc.callbacks.append(lambda phase, facts: left_out.append(gc.get_freeze_count()))
fork_server.own_group()
gc.collect(0)
print(min(left_out) >= len(imported))
"""


def test_no_collection_of_a_process_looks_at_the_servers_objects():
    command = [sys.executable, "-c", _FIRST_COLLECTION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def name_of_a_lock():
    """The name of a new lock of multiprocessing; None for one that ends with its process."""
    return multiprocessing.RLock()._semlock.name


def test_locks_of_a_killed_process_do_not_remain(tmp_path):
    process = RunnerProcess("torch", tmp_path / "log", 60.0, {})
    try:
        assert process.request(Commands.call, f"{__name__}:{name_of_a_lock.__name__}") is None
    finally:
        process.stop()


_IN_A_USERS_FOLDER = """
import sys
from pathlib import Path
from parity.execution import fork_server
from parity.execution.commands import Commands
from parity.execution.worker import RunnerProcess
from tests.locations import ROOT
# Python 3.10 has no such variable.
fork_server._SAFE_PATH = {}
if __name__ == "__main__":
    process = RunnerProcess("torch", Path("log"), 60.0, {})
    print(process.request(Commands.call, "gc:isenabled"))
    process.stop()
"""


@pytest.mark.full
def test_a_users_file_hides_no_library_from_the_server(tmp_path):
    for name in ("torch", "numpy", "socket"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(3)")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "start.py"
    script.write_text(_IN_A_USERS_FOLDER)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "True", done


def test_the_server_collects_no_garbage():
    program = "import gc, parity.execution.fork_server; print(gc.isenabled())"
    for parent, collects in (({}, True), ({"PARITY_SERVER_OF": str(os.getpid())}, False)):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=os.environ | parent, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(collects)


def server_waits():
    """Variables of this process's parent, the server, that say how threads wait for one another."""
    variables = Path(f"/proc/{os.getppid()}/environ").read_text().split("\0")
    return sorted(line for line in variables if line.startswith(("GOMP_SPINCOUNT=", "OMP_WAIT_POLICY=")))


_WAITS = """
import sys
from pathlib import Path
from parity.execution.commands import Commands
from parity.execution.worker import RunnerProcess
process = RunnerProcess("torch", Path(sys.argv[1]), 60.0, {})
print(process.request(Commands.call, "tests.parity.execution.test_fork_server:server_waits"))
process.stop()
"""


@pytest.mark.parametrize(
    ("own", "servers"),
    [
        pytest.param({}, ["GOMP_SPINCOUNT=0"], id="by default"),
        pytest.param(
            {"OMP_WAIT_POLICY": "active"},
            ["OMP_WAIT_POLICY=active"],
            id="as the user says",
            marks=pytest.mark.full,
        ),
    ],
)
def test_threads_of_the_servers_processes_sleep_where_they_wait(tmp_path, own, servers):
    variables = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [sys.executable, "-c", _WAITS, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=variables | {"PYTHONPATH": str(ROOT)} | own,
    )
    assert done.stdout.strip() == str(servers), done.stderr


def products():
    """oneDNN's variable in a runner's process, and the rows of a product that change with row 4 as NaN."""
    x = torch.randn(35, 15, dtype=torch.bfloat16)
    linear = torch.nn.Linear(15, 16, dtype=torch.bfloat16)
    before = linear(x)
    x[4] = torch.nan
    changed = (linear(x) != before).any(1).nonzero()[:, 0].tolist()
    return os.environ[INSTRUCTIONS], changed


@pytest.mark.parametrize("own", [None, "AVX2"])
def test_rows_of_a_runners_products_do_not_reach_one_another(tmp_path, monkeypatch, own):
    """On a CPU with AMX, row 4 would reach row 3."""
    monkeypatch.delenv(INSTRUCTIONS, raising=False)
    if own is not None:
        monkeypatch.setenv(INSTRUCTIONS, own)
    process = RunnerProcess("torch", tmp_path / "log", 60.0, {})
    newest, changed = process.request(Commands.call, f"{__name__}:products")
    process.stop()
    assert changed == [4]
    assert newest == (own or without_tiles()[INSTRUCTIONS])


def test_starts_side_by_side_leave_the_variables_as_they_were(monkeypatch):
    """Each of two overlapping starts would restore what it found, and one of them finds the other's."""
    before, seen = dict(os.environ), []
    both = threading.Barrier(2)

    def ensure_running():
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)
        # The one that came first ends first.
        time.sleep(0.1 * len(seen))
        seen.append(os.environ["PYTHONSAFEPATH"])

    monkeypatch.setattr(fork_server.forkserver, "ensure_running", ensure_running)
    threads = [threading.Thread(target=fork_server.start) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert fork_server.environment() == before
    for thread in threads:
        thread.join()
    assert seen == ["1", "1"]
    assert dict(os.environ) == before


def test_a_runner_has_its_variables_while_another_one_starts_the_server(monkeypatch):
    """The server's variables are this process's for a moment, and no choice of the user's."""
    monkeypatch.delenv(INSTRUCTIONS, raising=False)
    starting, seen = threading.Event(), []

    def ensure_running():
        starting.set()
        time.sleep(0.2)

    def look():
        starting.wait()
        seen.append(fork_server.environment()[INSTRUCTIONS])

    monkeypatch.setattr(fork_server.forkserver, "ensure_running", ensure_running)
    thread = threading.Thread(target=look)
    thread.start()
    fork_server.start()
    thread.join()
    assert seen == [without_tiles()[INSTRUCTIONS]]
