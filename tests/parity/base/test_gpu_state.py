"""The state of a GPU: asked of the library, then of the command, never guessed at."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from parity.base import gpu_state


class TestGpuState:
    @pytest.fixture(autouse=True)
    def _gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        properties = SimpleNamespace(uuid="1234")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    def test_the_library_is_asked_first(self, monkeypatch):
        fake = SimpleNamespace(
            NVMLError=ValueError,
            NVML_CLOCK_SM=1,
            NVML_CLOCK_MEM=2,
            NVML_TEMPERATURE_GPU=0,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1234": "device"}[uuid],
            nvmlSystemGetDriverVersion=lambda: "580.1",
            nvmlDeviceGetClockInfo=lambda device, kind: 1000 * kind,
            nvmlDeviceGetPowerUsage=lambda device: 123456,
            nvmlDeviceGetTemperature=lambda device, kind: 40,
        )
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        assert gpu_state.gpu_state() == {
            "driver": "580.1",
            "SM clock": "1000 MHz",
            "memory clock": "2000 MHz",
            "power": "123.5 W",
            "temperature": "40 C",
        }

    def test_then_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        printed = "580.1, 1980 MHz, 3201 MHz, 80.85 W, 32\n"

        def run(command, **options):
            assert "--id=GPU-1234" in command
            return SimpleNamespace(stdout=printed)

        monkeypatch.setattr(subprocess, "run", run)
        assert list(gpu_state.gpu_state().values()) == ["580.1", "1980 MHz", "3201 MHz", "80.85 W", "32 C"]

    def test_where_neither_answers_it_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setenv("PATH", "")
        (reason,) = gpu_state.gpu_state().values()
        assert reason.startswith("nvidia-ml-py is not installed; nvidia-smi: ")

    def test_what_the_command_prints_is_not_guessed_at(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="No devices\n"))
        assert gpu_state.gpu_state()["unknown"].endswith("nvidia-smi printed 'No devices'")


def test_without_a_gpu_there_is_no_state(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_state.gpu_state() == {}
