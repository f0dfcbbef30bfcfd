"""The server of runner processes: its imports leave CUDA alone, which a forked process could not use then.

It collects no garbage, and its processes do.
"""

import os
import subprocess
import sys

from parity.execution.commands import Commands
from parity.execution.worker import RunnerProcess

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


def test_the_server_collects_no_garbage():
    program = "import gc, parity.execution.fork_server; print(gc.isenabled())"
    for parent, collects in (({}, True), ({"PARITY_SERVER_OF": str(os.getpid())}, False)):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=os.environ | parent, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(collects)
