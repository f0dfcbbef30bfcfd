"""Memory is known before it is allocated."""

import contextlib
import math
import resource

import pytest

from parity.base import memory
from parity.base.errors import UserError


@pytest.fixture
def limited(monkeypatch):
    """The process has at most this address space."""

    def limit(size):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (size, size))

    return limit


def test_a_limit_of_address_space_counts(limited):
    limited(resource.RLIM_INFINITY)
    assert memory.address_space_left() == math.inf
    assert 0 < memory.available() < math.inf
    limited(2**50)
    assert 2**49 < memory.address_space_left() < 2**50
    assert memory.data_left() > 2**49
    limited(1)
    assert memory.available() < 0


def test_a_limit_of_data_counts(monkeypatch):
    data = {resource.RLIMIT_DATA: 2**45, resource.RLIMIT_AS: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (data[kind],) * 2)
    assert memory.address_space_left() == math.inf
    assert 2**44 < memory.data_left() < 2**45
    data[resource.RLIMIT_DATA] = 1
    assert memory.available() < 0


def test_a_system_that_does_not_tell_has_no_limit(monkeypatch, tmp_path, limited):
    limited(resource.RLIM_INFINITY)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.available() == math.inf


def test_a_limit_of_the_container_counts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 1000


def test_an_input_beyond_the_memory_is_refused_by_arithmetic():
    memory.require("--batch", 1, 2**10, "give a smaller one")
    with pytest.raises(
        UserError, match=r"--batch: 8 needs 1.05e\+06 GiB of memory, and .* GiB are available"
    ):
        memory.require("--batch", 8, 2**50, "give a smaller one")


def test_a_program_ends_before_libraries_that_do_not_fit(limited, capsys):
    limited(resource.RLIM_INFINITY)
    memory.require_least()
    limited(1)
    with pytest.raises(SystemExit) as ended:
        memory.require_least()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        "error: machine: the program needs 0.312 GiB of memory, and 0 GiB"
    )


@pytest.mark.parametrize(
    ("files", "refused"), [(20, True), (63, True), (64, False), (resource.RLIM_INFINITY, False)]
)
def test_a_program_ends_before_libraries_that_lack_open_files(monkeypatch, capsys, files, refused):
    limits = {resource.RLIMIT_NOFILE: files}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits.get(kind, resource.RLIM_INFINITY),) * 2)
    with pytest.raises(SystemExit) if refused else contextlib.nullcontext():
        memory.require_least()
    fix = "raise that limit to 64 or more (ulimit -n)"
    told = f"error: machine: the program may have {files} open files; {fix}\n" if refused else ""
    assert capsys.readouterr().err == told
