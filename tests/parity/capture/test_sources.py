"""Places of a model's code: the user's files and lines, without installed libraries."""

import inspect

import pytest
import torch

from parity.capture.sources import sources


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)

    def score(self, x):
        return self(x)


def _line(function):
    return inspect.getsourcelines(function)[1]


def test_each_module_has_the_line_of_its_forward_and_the_model_that_of_its_entry(monkeypatch, tmp_path):
    model = torch.nn.ModuleDict({"block": Block()})
    modules = {"": Block(), "block": model["block"], "block.inner": model["block"].inner}
    monkeypatch.chdir(tmp_path)
    assert sources(modules, "score") == {
        "": f"{__file__}:{_line(Block.score)}",
        "block": f"{__file__}:{_line(Block.forward)}",
    }


class Appending(Block):
    def cached_forward(self, x):
        return self(x)

    def extend(self, x):
        return self(x)


class Extending(Block):
    def extend(self, x):
        return self(x)


def test_a_module_with_another_function_in_appends_has_both(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    modules = {"": Extending(), "block": Appending(), "other": Block()}
    assert sources(modules, "score") == {
        "": f"{__file__}:{_line(Block.score)}",
        "block": f"{__file__}:{_line(Block.forward)}",
        "other": f"{__file__}:{_line(Block.forward)}",
        "append:": f"{__file__}:{_line(Extending.extend)}",
        "append:block": f"{__file__}:{_line(Appending.cached_forward)}",
    }


class Overriding(Block):
    def __call__(self, x):
        return self.forward(x)


class AlsoOverriding(Overriding):
    """Its `__call__` is inherited."""


@pytest.mark.parametrize("kind", [Overriding, AlsoOverriding])
def test_a_module_that_overrides_call_has_its_line(kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module, call = kind(), f"{__file__}:{_line(Overriding.__call__)}"
    assert sources({"": module, "block": module}, "forward") == {"": call, "block": call}
    assert sources({"": module}, "score") == {"": f"{__file__}:{_line(Block.score)}"}


def test_a_file_in_the_working_folder_has_a_short_name(monkeypatch):
    monkeypatch.chdir(inspect.getfile(Block).rpartition("/")[0])
    assert sources({"block": Block()}, "score") == {"block": f"test_sources.py:{_line(Block.forward)}"}


def test_a_missing_entry_has_no_place():
    assert sources({"": torch.nn.ModuleDict()}, "score") == {}
