"""The switches for unmodified scripts, in processes of their own: nvtripy's import reads them."""

import os
import subprocess
import sys
from pathlib import Path

import nvtripy as tp
import pytest
import torch
from nvtripy.utils import stack_info

from mlir_tensorrt.runtime.api import MTRTException
from tripy_portable.runtime.scripts import CUDA_ON_CPU, NO_CALL_STACKS, CudaOnCpu, GpuTensor, apply_switches

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the switch has no effect on a GPU")


def run(tmp_path, script, **switches):
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | switches
    return subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )


RECORDED = """
import nvtripy as tp

def traced(x):
    first = x + tp.ones((3,))
    second = first + tp.ones((4,))
    return second

compiled = tp.compile(tp.relu, args=[tp.InputInfo((2,), tp.float32)])
print(compiled(tp.copy(tp.Tensor([-1.0, 2.0]), tp.device("gpu"))).tolist())
for function in (traced, lambda x: tp.reshape(x, "wrong")):
    try:
        tp.compile(function, args=[tp.InputInfo((3,), tp.float32)])
    except tp.TripyException as error:
        print(error)
"""


def test_operations_have_one_frame(monkeypatch):
    before = tp.Tensor([1.0]) + tp.Tensor([2.0])
    monkeypatch.setattr(stack_info, "get_stack_info", stack_info.get_stack_info)
    monkeypatch.setenv(NO_CALL_STACKS, "1")
    apply_switches()
    after = tp.Tensor([1.0]) + tp.Tensor([2.0])
    assert after.tolist() == before.tolist()
    files = [{frame.file for frame in tensor.stack_info} for tensor in (before, after)]
    assert __file__ in files[0]
    assert files[1] == {"", f"<{NO_CALL_STACKS}=1>"}
    with pytest.raises(tp.TripyException, match=Path(__file__).name):
        tp.reshape(after, "wrong")


@pytest.mark.full
@pytest.mark.parametrize("switch", ["0", "1"])
def test_operations_are_recorded_without_call_stacks(switch, tmp_path):
    done = run(tmp_path, RECORDED, **{NO_CALL_STACKS: switch})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.0, 2.0]")
    assert ("second = first" in done.stdout) is (switch == "0")
    assert (f"<{NO_CALL_STACKS}=1>" in done.stdout) is (switch == "1")
    # The line that raises an error.
    assert 'tp.reshape(x, "wrong")' in done.stdout


SAYS_CUDA = """
import nvtripy as tp
import torch

compiled = tp.compile(lambda x: x * 2.0, args=[tp.InputInfo((2,), tp.float32)])
ones = torch.ones(2, device="cuda")
print((compiled(tp.Tensor(ones)) + tp.Tensor([1.0, 2.0])).tolist())
again = compiled(compiled(tp.Tensor(torch.from_dlpack(compiled(tp.Tensor((ones + ones).contiguous()))))))
torch.cuda.synchronize()
print(torch.from_dlpack(again).cpu().numpy())
try:
    compiled(tp.Tensor(ones.cpu()))
except tp.TripyException as error:
    print(str(error).strip().splitlines()[-1])
"""


@pytest.mark.full
@needs_no_gpu
def test_a_script_that_says_cuda_runs_on_the_cpu(tmp_path):
    done = run(tmp_path, SAYS_CUDA, **{CUDA_ON_CPU: "1"})
    assert done.returncode == 0, done.stderr
    assert "[3.0, 4.0]\n[16. 16.]\n" in done.stdout
    assert "expected to be on device: gpu but got: cpu" in done.stdout
    assert done.stderr.count(f"because {CUDA_ON_CPU} is 1") == 1


@pytest.mark.full
@needs_no_gpu
def test_without_the_switch_pytorch_raises_its_error(tmp_path):
    done = run(tmp_path, SAYS_CUDA)
    assert done.returncode == 1
    assert "CUDA" in done.stderr.splitlines()[-1]
    assert CUDA_ON_CPU not in done.stderr


@pytest.mark.parametrize("name", [NO_CALL_STACKS, CUDA_ON_CPU])
def test_a_switch_is_0_or_1(name, monkeypatch):
    monkeypatch.setenv(name, "yes")
    with pytest.raises(MTRTException, match=f"{name} must be 0 or 1, but is 'yes'"):
        apply_switches()


@pytest.mark.full
def test_the_stand_in_may_be_imported_first(tmp_path):
    done = run(
        tmp_path,
        "import mlir_tensorrt; import nvtripy as tp; print(tp.ones((1,)).tolist())",
        **{NO_CALL_STACKS: "1"},
    )
    assert done.stdout == "[1.0]\n", done.stderr


@needs_no_gpu
@pytest.mark.filterwarnings("ignore:no GPU")
class TestTensors:
    @pytest.fixture(autouse=True)
    def _mode(self):
        with CudaOnCpu():
            yield

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.zeros(2).cuda(),
            lambda: torch.zeros(2).cuda(non_blocking=True),
            lambda: torch.zeros(2).to("cuda:0"),
            lambda: torch.zeros(2).to(torch.device("cuda"), torch.float16),
            lambda: torch.zeros(2).to(device="cuda"),
            lambda: torch.tensor([1.0], device="cuda"),
            lambda: torch.randn(2, device=torch.device("cuda", 0)),
            lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
            lambda: torch.arange(3, device="cuda") * 2 + 1,
            lambda: torch.nn.Linear(2, 2).cuda()(torch.zeros(1, 2, device="cuda")),
            lambda: torch.nn.Linear(2, 2, device="cuda").weight,
            lambda: torch.nn.Linear(2, 2).to("cuda")(torch.zeros(1, 2).cuda()),
        ],
    )
    def test_requests_for_cuda(self, make):
        tensor = make()
        assert isinstance(tensor, GpuTensor)
        assert tensor.device.type == "cpu"

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.zeros(2),
            lambda: torch.zeros(2, device="cpu"),
            lambda: torch.zeros(2, device="cuda").cpu(),
            lambda: torch.zeros(2, device="cuda").to("cpu"),
            lambda: torch.zeros(2, device="cuda").to("cpu", torch.float64),
            lambda: torch.zeros(2).to(torch.float16),
        ],
    )
    def test_other_tensors(self, make):
        assert type(make()) is torch.Tensor

    def test_a_move_shares_no_memory(self):
        host = torch.zeros(2)
        for move in (lambda: host.cuda(), lambda: host.to("cuda")):
            move().fill_(1.0)
            assert host.tolist() == [0.0, 0.0]
        there = host.cuda()
        assert there.cuda() is there
        assert there.to("cuda") is there
        for move in (there.cpu, lambda: there.to("cpu")):
            move().fill_(1.0)
            assert there.tolist() == [0.0, 0.0]

    def test_nvtripy_takes_them_for_memory_of_the_gpu(self):
        there, here = torch.zeros(2, device="cuda"), torch.zeros(2)
        assert [tp.Tensor(tensor).device.kind for tensor in (there, here, there)] == ["gpu", "cpu", "gpu"]
        # Another user of an export.
        torch.utils.dlpack.from_dlpack(there.__dlpack__())
        assert tp.Tensor(here).device.kind == "cpu"
