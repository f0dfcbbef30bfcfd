"""Triton's interpreter as the tests of kernels change it: one search a launch, other products."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")

from triton.runtime import interpreter  # noqa: E402

from tests.kernels.interpreting import patched_once  # noqa: E402

BLOCK = 16


@triton.jit
def squared(x):
    return tl.where(x > 0, x * x, -x * x)


@triton.jit
def sum_of_squares(x_ptr, result_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += squared(tl.load(x_ptr + start + offsets, mask=start + offsets < n, other=0.0))
    tl.store(result_ptr, tl.sum(total))


pytestmark = pytest.mark.skipif(
    not isinstance(squared, interpreter.InterpretedFunction), reason="a GPU runs the kernels"
)


@pytest.fixture
def searches(monkeypatch):
    """The searches of the language, in the order in which the interpreter makes them."""
    searched = []
    search = interpreter._patch_builtin

    def recorded(package, *arguments):
        searched.append(package)
        return search(package, *arguments)

    monkeypatch.setattr(interpreter, "_patch_builtin", recorded)
    return searched


def launched(n):
    x = torch.linspace(-1.0, 2.0, n)
    result = torch.zeros(1)
    sum_of_squares[(1,)](x, result, n, BLOCK=BLOCK)
    return float(result), float((x * x * x.sign()).sum())


def test_a_launch_searches_once_however_many_functions_it_calls(searches):
    # The interpreter never restores what the language's own functions use.
    launched(BLOCK)
    searches.clear()
    launched(BLOCK)
    once = len(searches)
    actual, expected = launched(20 * BLOCK)
    assert len(searches) == 2 * once > 0
    assert actual == pytest.approx(expected, rel=1e-5)
    assert tl.core.is_builtin(tl.load)


def test_results_are_those_of_the_interpreter_s_own_function(monkeypatch):
    actual, _ = launched(5 * BLOCK)
    monkeypatch.setattr(interpreter, "_patch_lang", interpreter._patch_lang.__wrapped__)
    assert launched(5 * BLOCK)[0] == actual


def test_a_function_outside_of_a_launch_is_patched():
    """Nothing is replaced there yet."""
    patch = patched_once(lambda fn: "patched")
    assert patch(sum_of_squares.fn) == "patched"


@triton.jit
def product(a_ptr, b_ptr, result_ptr, IS_TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a = tl.load(a_ptr + rows * BLOCK + columns)
    b = tl.load(b_ptr + rows * BLOCK + columns)
    if IS_TRANSPOSED:
        b = tl.trans(b)
    tl.store(result_ptr + rows * BLOCK + columns, tl.dot(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("block", [16, 64])
def test_an_element_of_a_product_has_the_same_bits_at_any_place(block, dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(block, block, generator=generator).to(dtype) for _ in range(2))
    rows, columns = (torch.randperm(block, generator=generator) for _ in range(2))

    def multiplied(a, b, is_transposed=False):
        result = torch.full((block, block), float("nan"))
        product[(1,)](a, b, result, is_transposed, block)
        return result

    whole = multiplied(a, b)
    torch.testing.assert_close(whole, (a.double() @ b.double()).float())
    assert torch.equal(multiplied(a[rows], b[:, columns].contiguous()), whole[rows][:, columns])
    assert torch.equal(multiplied(a, b.T.contiguous(), is_transposed=True), multiplied(a, b))
