"""Checks of both attention plugins, the research mask's and the production mask's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import nvtripy as tp
import pytest
import torch

from kernels.plugins.schema import HSTUAttentionSettings, STUAttentionSettings
from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge
from tests.kernels.marks import GPU

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# By input: a change of it, and the message that refuses the changed input.
WRONG_ROWS = {
    "q": (lambda x: x.to(torch.int32), "the type of q is .*INT32.* must be float32, float16 or bfloat16"),
    "k": (lambda x: x.flatten(1), "the rank of k is 2, but must be 3"),
    "v": (lambda x: x.half(), "the type of v is .*HALF.* must be q's"),
    "offsets": (lambda x: x.float(), "the type of offsets is .*FLOAT.* must be int32 or int64"),
}


def on_device(inputs: Iterable[torch.Tensor]) -> list[tp.Tensor]:
    return [tp.copy(tp.Tensor(x.contiguous()), tp.device("gpu")) for x in inputs]


def graph_of(
    plugin: str, settings: HSTUAttentionSettings | STUAttentionSettings, infos: Sequence[tp.InputInfo]
) -> tp.Executable:
    """One call of a plugin, compiled."""
    return tp.compile(
        lambda *inputs: tp.plugin(plugin, list(inputs), settings=settings.to_string()), args=infos
    )


def assert_is_the_operation(
    result: tp.Tensor, inputs: list[torch.Tensor], attention: Callable[..., torch.Tensor]
) -> None:
    """The plugin calls one backend, whose bits it must return; and that backend must be right.

    `attention(inputs, backend=...)` is the operation.
    """
    result = torch.from_dlpack(result)
    assert result.is_cuda == GPU
    placed = [x.to(result.device) for x in inputs]
    assert torch.equal(result, attention(placed, backend="triton" if GPU else "eager"))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    oracle, reference = (attention(values, backend="eager") for values in (wide, inputs))
    precision = next(p for p in PRECISIONS.values() if p.dtype is result.dtype)
    q, _, _, offsets, *_ = inputs
    # A sum runs over a head's elements, or over the rows of a sequence.
    longest_sum = max(q.size(2), int(offsets.diff().max()))
    verdict = judge(oracle, reference, result.cpu(), precision, longest_sum)
    assert verdict.passed, verdict.reason


def assert_is_refused(
    plugin: str,
    settings: HSTUAttentionSettings | STUAttentionSettings,
    inputs: Iterable[torch.Tensor],
    message: str,
) -> None:
    """The plugin refuses these inputs with a message that names the wrong one."""
    tensors = [tp.Tensor(x.contiguous()) for x in inputs]
    with pytest.raises(ValueError, match=f"{plugin}: {message}"):
        tp.plugin(plugin, tensors, settings=settings.to_string())


def assert_tripy_can_call(
    definition: Any, plugin: str, names: tuple[str, ...], registration: ModuleType
) -> None:
    assert definition.plugin_id == plugin
    assert tuple(definition.input_tensor_names) == names
    # nvtripy 0.1.7 takes one attribute, and TensorRT hands that over as a string.
    assert definition.input_attrs == {"settings": str}
    assert definition.num_outputs == 1
    assert definition.impl_func is registration.compute
    assert definition.aot_impl_func is registration.compile_kernel


def assert_tensorrt_can_launch(kernels: list[dict[str, Any]], capability: int) -> None:
    """`kernels` as `compile_plugin` writes them for a GPU: for each type, all that TensorRT needs."""
    types = {"float32", "float16", "bfloat16"} if capability == 90 else {"bfloat16"}
    assert {kernel["capability"] for kernel in kernels} == {capability}
    assert {kernel["precision"] for kernel in kernels} == types
    for kernel in kernels:
        assert kernel["target"].startswith(f"sm_{kernel['capability']}")
        assert kernel["is_elf"]
        assert kernel["threads"] % 32 == 0
        assert kernel["shared"] <= 48 << 10
        assert kernel["heads"] % kernel["programs_per_block"] == 0
        # Seven inputs, three numbers, one output, and none of Triton's own.
        assert kernel["arguments"] == [".u64"] * 7 + [".u32"] * 3 + [".u64"]
        assert kernel["assembler"] == ""


def assert_is_told_to_launch(told: dict[str, Any], programs: Iterable[int]) -> None:
    """`told` as `compile_plugin` writes it, for four sequences of up to 10 rows, each in one of these numbers
    of `programs`.
    """
    blocks = 1  # of 64 rows
    assert told["is_named"]
    assert told["grid"] in [[blocks * 4 * entry, 1, 1] for entry in programs]
    assert told["threads"] % 32 == 0
    assert 0 < told["shared"] <= 48 << 10
    assert told["numbers"] == [4, 10, blocks]
