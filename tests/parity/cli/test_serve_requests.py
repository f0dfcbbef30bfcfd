"""The verb `serve` before a test begins: what it asks for, and what it refuses."""

import sys
import types

import pytest

from parity.runners import Unavailable
from parity.studies.serving import command as serving

SERVE = ("serve", "--case", "dlrmv3_tiny", "--samples", "3")


@pytest.fixture
def asked(command, monkeypatch, tmp_path):
    """The order that a call of the verb makes."""

    def orders(*options):
        made = []

        def serve(order, folder, advance):
            made.append(order)
            raise Unavailable("no device")

        monkeypatch.setattr(serving, "serve", serve)
        ended = command(*SERVE, *options, "--save", tmp_path / "out")
        return ended, made[0]

    return orders


def test_the_order_has_the_runner_and_its_options(asked):
    _, order = asked()
    assert (order.runner, order.fuse, order.tables_on, order.samples) == ("tripy", False, "files", 3)
    ended, order = asked("--runner", "tripy_jagged", "--fuse", "--tables-on", "cpu")
    assert (order.runner, order.fuse, order.tables_on) == ("tripy_jagged", True, "cpu")
    assert ended.code == 2
    assert "runner: tripy_jagged is unavailable: no device; run where the port can" in ended.err


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
