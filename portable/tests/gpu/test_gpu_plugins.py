"""Plugins on a GPU: in the call's stream, without waiting, and inside a captured graph."""

import nvtripy as tp
import pytest
import torch
from plugin_examples import CALLS, added

from tripy_portable.runtime.options import CUDA_GRAPHS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("graphs", ["0", "1"], ids=["steps", "graph"])
def test_a_plugin_runs_in_the_graphs_stream(graphs, dtype, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    kind = tp.bfloat16 if dtype is torch.bfloat16 else tp.float32
    compiled = tp.compile(lambda x, y: added(x * 2.0, y), args=[tp.InputInfo(((1, 64, 64), 256), kind)] * 2)
    xs = [torch.full((64, 256), float(value), dtype=dtype, device="cuda") for value in range(5)]
    CALLS.clear()
    results = [compiled(tp.Tensor(x), tp.Tensor(x)) for x in xs]
    for value, result in enumerate(results):
        assert torch.equal(torch.from_dlpack(result), torch.full((64, 256), 5.0 * value, dtype=dtype).cuda())
    # A replay calls no plugin: the second call is the capture.
    assert len(CALLS) == (2 if graphs == "1" else 5)
    assert all(contiguous for contiguous, _, _ in CALLS)


def test_a_plugin_does_not_synchronise():
    compiled = tp.compile(added, args=[tp.InputInfo((64, 256), tp.float32)] * 2)
    x = tp.Tensor(torch.ones(64, 256, device="cuda"))
    compiled(x, x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled(x, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
