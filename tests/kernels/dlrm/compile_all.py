"""Compiles the Triton kernels at DLRM's sizes, as they are launched, for a GPU that need not be there.

    python -m tests.kernels.dlrm.compile_all CAPABILITY LAST

Writes a JSON object: a launch's name to its shared memory in bytes. It needs a process of its own: tests
interpret the kernels, and an import decides between both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch
from triton.runtime.jit import JITFunction

from kernels.dlrm import Bags, CodedTableGroup, TableGroup
from kernels.dlrm.bags_triton import launch_bags, launch_bags_interaction
from kernels.dlrm.coded_tables import row_bytes
from kernels.dlrm.interaction_triton import launch as launch_interaction
from kernels.dlrm.mlp_triton import launch_linear, launch_two_layers
from kernels.dlrm.pointwise_triton import launch_pointwise
from tests.kernels.triton_compiling import compile_kernel

OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


def is_multiple(value: object) -> bool:
    """Whether a launch passes a multiple of 16."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def launches() -> Iterator[tuple[str, Callable[[], None]]]:
    """Launches of MLPerf's DLRM in bfloat16, at two batch sizes, and of pointwise kernels."""
    half = torch.bfloat16
    rows = torch.empty(128, 512)
    yield "add + bias + relu", lambda: launch_pointwise(rows, None, rows[0], 1.0, "relu", rows)
    yield "lora + sigmoid", lambda: launch_pointwise(rows, rows, rows[0], 0.5, "sigmoid", rows)
    group = TableGroup([torch.empty(10, 128) for _ in range(26)])
    for batch in (2048, 16384):
        indices = torch.empty(26 * batch, dtype=torch.int64)
        bags = Bags(indices, torch.empty(26 * batch + 1, dtype=torch.int64))
        features = torch.empty(batch, 27, 128, dtype=half)
        out = torch.empty(batch, 480, dtype=half)
        yield f"bags, {batch}", lambda b=bags, f=features: launch_bags(group, b, f[:, 1:])
        yield f"interaction, {batch}", lambda f=features, o=out: launch_interaction(f, False, o[:, :479])
        yield (
            f"bags and interaction, {batch}",
            lambda b=bags, f=features, o=out: launch_bags_interaction(
                f[:, 0].contiguous(), group, b, False, o[:, :479]
            ),
        )
        for columns, outputs in ((13, 512), (512, 256), (480, 1024), (1024, 1024)):
            x, weight = (torch.empty(size, columns, dtype=half) for size in (batch, outputs))
            result = torch.empty(batch, outputs, dtype=half)
            yield (
                f"linear {columns}-{outputs}, {batch}",
                lambda x=x, w=weight, r=result: launch_linear(x, w, r[0], "relu", r),
            )
    for columns, hidden, outputs in ((512, 256, 1), (13, 512, 256)):
        x, first = (torch.empty(size, columns, dtype=half) for size in (16384, hidden))
        second, bias = torch.empty(outputs, hidden, dtype=half), torch.empty(512, dtype=half)
        result = torch.empty(16384, outputs, dtype=half)
        yield (
            f"two layers {columns}-{hidden}-{outputs}",
            lambda x=x, a=first, b=second, v=bias, r=result: launch_two_layers(
                x, a, v, b, v, ("relu", "sigmoid"), r
            ),
        )


def coded_launches() -> Iterator[tuple[str, Callable[[], None]]]:
    """Launches on rows of codes at MLPerf's sizes, of bags alone and with the interaction."""
    indices = torch.empty(26 * 2048, dtype=torch.int64)
    bags = Bags(indices, torch.empty(26 * 2048 + 1, dtype=torch.int64))
    features, out = (torch.empty(2048, *sizes, dtype=torch.bfloat16) for sizes in ((27, 128), (480,)))
    for bits in (8, 4):
        table = torch.empty(10, row_bytes(128, bits), dtype=torch.uint8)
        group = CodedTableGroup([table] * 26, bits)
        yield f"bags in {bits} bits", lambda g=group: launch_bags(g, bags, features[:, 1:])
        yield (
            f"bags and interaction in {bits} bits",
            lambda g=group: launch_bags_interaction(
                features[:, 0].contiguous(), g, bags, False, out[:, :479]
            ),
        )


def main(capability: int, last: int) -> dict[str, int]:
    """Bytes of shared memory by name of launch, of the `last` launches; 0 means all."""
    shared: dict[str, int] = {}
    started: list[tuple[JITFunction, dict[str, object]]] = []

    def record(kernel: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: object, **named: object) -> None:
            started.append((kernel, dict(zip(kernel.arg_names, arguments, strict=False)) | named))

        return launch

    JITFunction.__getitem__ = record
    for name, launch in [*coded_launches(), *launches()][-last:]:
        launch()
        kernel, values = started.pop()
        options = {option: values[option] for option in OPTIONS if option in values}
        compiled = compile_kernel(kernel, values, capability, options, is_multiple)
        shared[name] = compiled.metadata.shared
        if not options.get("enable_fp_fusion", True):
            assert "fma.rn" not in compiled.asm["ptx"], f"{name} rounds a product and a sum once"
        assert not started, f"{name} is more than one launch"
    return shared


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:]))))
