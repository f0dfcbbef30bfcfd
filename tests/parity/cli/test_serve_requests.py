"""The verb `serve` before a test begins: what it asks for, and what it refuses."""

import sys
import types
from types import SimpleNamespace

import pytest

from parity.runners import Unavailable
from parity.studies.serving import command as serving

SERVED = SimpleNamespace(lines=lambda: ("one line", "and another"), exit_code=1)
"""In the place of the tests' results."""
SERVE = ("serve", "--case", "dlrmv3_tiny", "--samples", "3")


@pytest.fixture
def asked(command, monkeypatch, tmp_path):
    """The end of a call of the verb, the order that it makes, and the name of the folder of its logs."""

    def orders(*options, end=SERVED):
        made = []

        def serve(order, folder, advance):
            assert folder.is_dir()
            advance("a step")
            made.append(order)
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(serving, "serve", serve)
        folder = tmp_path / f"out {len(list(tmp_path.iterdir()))}"
        ended = command(*SERVE, *options, "--save", folder)
        assert len(made) == 1, ended
        return ended, made[0], folder

    return orders


def test_the_order_by_default(asked):
    ended, order, folder = asked()
    assert (order.case.name, order.precision.name, order.checkpoint) == ("dlrmv3_tiny", "fp32", None)
    assert (order.runner, order.fuse, order.tables_on, order.tables) == ("tripy", False, "files", None)
    assert (order.samples, order.seed, order.tokens, order.data) == (3, order.case.seed, None, None)
    assert (order.load, order.measures, order.kv_cache) == (
        serving.Load("offline", 10.0, 600.0, 100),
        True,
        None,
    )
    assert ended.out.splitlines() == ["one line", "and another", f"logs: {folder}"]
    assert (ended.code, folder.is_dir()) == (1, True)


def test_the_order_has_every_option(asked, tmp_path):
    weights, data, tables = (tmp_path / name for name in ("weights.pt", "requests", "tables"))
    options = ("--weights", weights, "--data", data, "--tables", tables, "--tables-on", "cpu", "--fuse")
    numbers = ("--seed", 7, "--tokens", 512, "--kv-cache", 0.5, "--rate", 3, "--duration", 2, "--queries", 9)
    more = ("--runner", "tripy_jagged", "--scenario", "server", "--accuracy-only", "--precision", "bf16")
    _, order, _ = asked(*options, *numbers, *more)
    assert (order.precision.name, order.checkpoint, order.data, order.tables) == (
        "bf16",
        weights,
        data,
        tables,
    )
    assert (order.runner, order.fuse, order.tables_on) == ("tripy_jagged", True, "cpu")
    assert (order.seed, order.tokens, order.kv_cache, order.measures) == (7, 512, 0.5, False)
    assert order.load == serving.Load("server", 3.0, 2.0, 9)


def test_a_port_that_cannot_run_here_is_refused(asked):
    ended, _, folder = asked("--runner", "tripy_layers", end=Unavailable("no device"))
    assert (ended.code, folder.exists()) == (2, False)
    assert ended.err == "error: runner: tripy_layers is unavailable: no device; run where the port can\n"


def test_several_cases_or_precisions_are_refused(refused):
    one = "are given, where one of each is taken; give one --case and one --precision"
    message = refused(*SERVE, "--precision", "fp32,bf16")
    assert message == f"serve: 1 of --case and 2 of --precision {one}"
    message = refused("serve", "--case", "dlrmv3_tiny,hstu_tiny")
    assert message == f"serve: 2 of --case and 1 of --precision {one}"


def test_a_folder_that_exists_or_holds_the_tables_is_refused(refused, tmp_path):
    (tmp_path / "there").mkdir()
    message = refused(*SERVE, "--save", tmp_path / "there")
    assert message == f"--save: {tmp_path / 'there'} exists; give a folder that does not exist"
    message = refused(*SERVE, "--save", tmp_path / "out", "--tables", tmp_path / "out")
    out = tmp_path / "out"
    assert message == f"--tables: {out} is or lies in the folder of --save; choose another folder"


@pytest.mark.parametrize("option", ["--runner", "--tables-on"])
def test_an_unknown_name_is_refused_by_its_option(refused, option, tmp_path):
    assert refused(*SERVE, option, "nothing", "--save", tmp_path / "out").startswith(f"{option}: nothing ")


def test_a_place_that_is_not_writable_is_refused_by_its_option(refused, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(*SERVE, "--save", tmp_path / "file" / "out")
    assert message.startswith(f"--save: {tmp_path / 'file' / 'out'} cannot be written")


def test_a_machine_without_the_port_is_refused(refused, monkeypatch):
    class Absent(types.ModuleType):
        def __getattr__(self, name):
            raise Unavailable("no such library")

    monkeypatch.setitem(sys.modules, "parity.studies.serving.port", Absent("port"))
    message = refused(*SERVE, "--runner", "tripy_layers")
    assert message.startswith("runner: tripy_layers is unavailable: no such library; run where")
