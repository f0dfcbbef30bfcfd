"""The engine names no model: neither a shipped case, nor a class that both sides define."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import nvtripy as tp
import pytest
import torch

from tests.locations import ROOT

_FILES = sorted(path for ending in ("py", "html", "css") for path in (ROOT / "parity").rglob(f"*.{ending}"))


def _classes(package: str) -> set[str]:
    """Names of the classes that a package's files define."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / package).glob("*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


@functools.cache
def _names() -> tuple[set[str], set[str]]:
    """Names of architectures, which stand in other words too, and names of classes and cases."""
    architectures = {path.parent.name for path in (ROOT / "cases").glob("*/case.py")}
    cases = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    of_both_sides = _classes("reference") & _classes("tripy_port")
    # A name that a framework has as well, such as a bag of embeddings, is not a model's own.
    own = of_both_sides - set(dir(torch.nn)) - set(dir(tp))
    return architectures, own | cases


def _found(text: str) -> list[str]:
    """Names of models in a text."""
    architectures, others = _names()
    within = re.compile(rf"(?i)(?<![a-z0-9])({'|'.join(architectures)})(?![a-z])")
    whole = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(others)})(?![A-Za-z0-9_])")
    return [match[0] for pattern in (within, whole) for match in pattern.finditer(text)]


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_the_engine_names_no_model(path: Path):
    assert _found(path.read_text()) == []


def test_the_names_are_those_of_the_shipped_models():
    architectures, others = _names()
    assert architectures == {"dlrm", "dlrmv3", "hstu", "lecture_dlrm", "stu"}
    assert {"hstu_tiny", "dlrm_mlperf", "DLRM_Net", "STULayer", "DotProductSimilarity"} <= others


@pytest.mark.parametrize(
    "text",
    [
        'if case.name == "hstu_tiny":',
        'if family == "dlrm":',
        '"""Attention of HSTU and STU."""',
        '"_hstu._attention_layers.0"',
        'GAPS = {"STUAttentionMask": "inside"}',
        "isinstance(module, DotProductSimilarity)",
    ],
)
def test_a_model_s_name_is_found(text):
    assert _found(text)
