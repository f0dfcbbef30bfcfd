"""oneDNN's instructions: those without tiles, unless the user has chosen."""

import platform

import pytest

from parity.base import onednn
from parity.base.environment import environment

NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


@pytest.fixture(autouse=True)
def none_chosen(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_tiles_are_left_out_and_the_environment_says_so():
    assert onednn.without_tiles() == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    assert environment()["oneDNN"] == "up to AVX512_CORE_FP16"


@pytest.mark.parametrize("name", NAMES)
def test_the_user_chooses(monkeypatch, name):
    monkeypatch.setenv(name, "ALL")
    assert onednn.without_tiles() == {}
    assert environment()["oneDNN"] == "up to ALL"


def test_another_processor_has_no_such_names(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "oneDNN" not in environment()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_value_is_no_choice(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert onednn.without_tiles() == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    assert environment()["oneDNN"] == "up to AVX512_CORE_FP16"
