"""The examples end as their texts say."""

import functools
import html
import re

import pytest
import torch

from examples import conv_net, gpt2_block, sasrec
from tests.parity.hidden_gpu import without_gpu
from tools import failure_picture


@functools.cache
def block_result():
    """On the CPU, as in the picture of the README."""
    with without_gpu():
        return gpt2_block.main(gpt2_block.BlockPort)


def words(text):
    """The words of a screen that are the same on every machine: no numbers, no worst module of a pass."""
    text = re.sub(r"PASS\s+\d+\s+[\d.]+\s+[\w.]+", "PASS", text)
    return re.findall(r"[A-Za-z_]{3,}", text)


def test_the_convolutional_net_passes():
    result = conv_net.main()
    assert result.passed
    assert "dropout" in str(result)


def test_the_bug_of_the_block_is_named_and_explained():
    result = block_result()
    assert not result.passed
    assert "FAIL at mlp" in str(result)
    assert "GELU by erf in place of tanh" in str(result)


def test_the_mended_block_passes():
    assert gpt2_block.main(gpt2_block.MendedPort).passed


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="other releases of PyTorch round attention otherwise"
)
def test_the_picture_of_the_readme_shows_the_screen_of_today():
    shown = re.findall("<text[^>]*>([^<]*)</text>", failure_picture.PICTURE.read_text())
    drawn = words(html.unescape(" ".join(shown)))
    assert words("0.30 of mlp") == words("0.31 of mlp") != words("0.30 of attn")
    assert words("PASS 9 0.30 mlp 1e-4") == words("PASS 9\xa0\xa00.31\xa0attn 1e-4") != words("PASS mlp")
    assert drawn[0] == "parity"
    screen = failure_picture.screen(block_result()).export_text()
    again = "write it again: PYTHONPATH=. python tools/failure_picture.py"
    assert drawn[1:] == words(screen), again
    (source,) = re.findall(r"gpt2_block\.py:\d+", screen)
    assert source in " ".join(shown), again


@pytest.mark.full
def test_sasrec_passes_with_pytorchs_own_attention():
    result = sasrec.main()
    assert result.passed, result
    (case,) = result.report.cases
    (port,) = (run for run in case.precisions[0].runners if run.runner == "tripy")
    attention = next(module for module in port.modules if module.tap == "blocks.1.attention")
    assert attention.kind == "MultiheadAttention"
    assert attention.isolated.status == attention.accumulated.status == "PASS"


class ShiftedPort(sasrec.SasRecPort):
    """A port whose mask is off by one: a position also attends to the next."""

    @staticmethod
    def is_future(query, key):
        return query + 1 < key


def test_a_mask_of_sasrec_that_is_off_by_one_is_named():
    result = sasrec.main(ShiftedPort)
    assert not result.passed
    assert "FAIL at blocks.0\n" in str(result)
    assert "blocks.0 receives another is_future" in str(result)
