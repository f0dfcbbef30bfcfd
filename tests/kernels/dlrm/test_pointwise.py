"""add + bias + ReLU and LoRA's x + scale * y + bias, in PyTorch, Triton and CUDA C++."""

import math

import pytest
import torch

from kernels.dlrm import KernelError, add_bias_relu, lora_activation
from tests.kernels.dlrm.cuda_generator import cuda_randn, cuda_randn_error
from tests.kernels.dlrm.golden import PRINTED
from tests.kernels.dlrm.kernel_setup import (
    ALL_BACKENDS,
    DEVICE,
    GPU,
    assert_right,
    backends,
    drawn,
    placed,
)

BACKENDS = pytest.mark.parametrize("backend", backends(ALL_BACKENDS))
PRECISION = pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
# Below a block, on its edge and over it; rows that 16 bytes divide and that they do not; one column.
SHAPES = [(1, 1), (8, 10), (3, 1023), (128, 512), (5, 7, 24), (2049, 1), (33, 1032)]
ACTIVATIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid}


@BACKENDS
@PRECISION
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_bias_relu(backend, precision, shape):
    inputs = [drawn(shape, 1, precision), drawn(shape[-1:], 2, precision)]
    result = add_bias_relu(*placed(inputs), backend=backend)
    assert_right(result, lambda x, bias: torch.relu(x + bias), inputs, precision, longest_sum=2)


@BACKENDS
@PRECISION
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lora_activation(backend, precision, activation, shape):
    inputs = [drawn(shape, 1, precision), drawn(shape, 2, precision), drawn(shape[-1:], 3, precision)]
    x, y, bias = placed(inputs)
    result = lora_activation(x, y, bias, 0.37, activation, backend=backend)

    def eager(x, y, bias):
        return ACTIVATIONS[activation](x + 0.37 * y + bias)

    assert_right(result, eager, inputs, precision, longest_sum=3)


@BACKENDS
@pytest.mark.parametrize("offset", [0, 1])
def test_memory_of_any_alignment(backend, offset):
    """Rows of 16-byte width in memory that begins one element later take another path in CUDA C++."""
    inputs = [drawn((6, 16), 1), drawn((16,), 2)]
    storage = torch.full((6 * 16 + 8,), math.nan, device=DEVICE)
    x = storage[offset : offset + 6 * 16].view(6, 16)
    x.copy_(inputs[0])
    result = add_bias_relu(x, inputs[1].to(DEVICE), backend=backend, out=x)
    assert result.data_ptr() == x.data_ptr()
    assert_right(result, lambda x, bias: torch.relu(x + bias), inputs, "fp32", longest_sum=2)
    assert int(storage.isnan().sum()) == 8


@BACKENDS
def test_every_element_is_written(backend):
    x, bias = placed([drawn((37, 130), 1), drawn((130,), 2)])
    poisoned = torch.full_like(x, math.nan)
    lora_activation(x, x, bias, 1.0, backend=backend, out=poisoned)
    assert not poisoned.isnan().any()


@BACKENDS
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_pass_as_in_pytorch(backend, activation):
    x = torch.tensor([[math.nan, math.inf, -math.inf, 0.0]], device=DEVICE)
    zero = torch.zeros_like(x)
    result = lora_activation(x, zero, zero[0], 1.0, activation, backend=backend)
    torch.testing.assert_close(result, ACTIVATIONS[activation](x), rtol=0, atol=0, equal_nan=True)


@BACKENDS
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,)], ids=str)
def test_nothing_to_do(backend, shape):
    x = torch.empty(shape, device=DEVICE)
    bias = torch.empty(shape[-1:], device=DEVICE)
    assert add_bias_relu(x, bias, backend=backend).shape == shape
    assert lora_activation(x, x, bias, 2.0, "sigmoid", backend=backend).shape == shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias_N": torch.zeros(4)}, r"bias_N has shape \(4,\): give \(5,\)"),
        ({"y": torch.zeros(2, 5)}, r"y has shape \(2, 5\): give \(3, 5\)"),
        ({"y": torch.zeros(3, 5, dtype=torch.float16)}, "y has dtype torch.float16"),
        ({"bias_N": torch.zeros(5, device="meta")}, "bias_N has device meta"),
        ({"x": torch.zeros(5, 3).T}, r"x\.stride\(\)=\(1, 3\): give x.contiguous\(\)"),
        ({"activation": "gelu"}, "activation='gelu': choose one of relu, sigmoid"),
        ({"backend": "tpu"}, "backend='tpu': choose one of torch, triton, cuda"),
        ({"out": torch.zeros(3, 4)}, r"out has shape \(3, 4\): give \(3, 5\)"),
        ({"out": torch.zeros(3, 5, dtype=torch.float64)}, "out.dtype=torch.float64: must be torch.float32"),
    ],
    ids=str,
)
def test_errors(change, words):
    arguments = {"x": torch.zeros(3, 5), "y": torch.zeros(3, 5), "bias_N": torch.zeros(5), "scale": 1.0}
    with pytest.raises(KernelError, match=words):
        lora_activation(**{**arguments, "backend": "torch", **change})


def test_a_backend_that_cannot_run_says_so():
    x = torch.zeros(3, 5)
    with pytest.raises(KernelError, match="x is on cpu: backend='cuda' runs on CUDA tensors"):
        add_bias_relu(x, x[0], backend="cuda")
    with pytest.raises(KernelError, match="x has dtype torch.float64: backend='triton' takes"):
        add_bias_relu(x.double(), x[0].double(), backend="triton")


# The lecture's printed tensors. They came from CUDA's generator with seed 0, which `cuda_randn` computes on
# any machine, so that inputs are exact; a printed number is off by half of its last digit.
PRINT_ERROR = 0.5e-4


def golden_inputs(shape):
    """x, bias and y in the order in which the lecture's programs drew them."""
    return cuda_randn(shape, 0), cuda_randn(shape[1:], 1), cuda_randn(shape, 2)


def assert_printed(result, printed, digits_error=PRINT_ERROR):
    printed = torch.tensor(printed, dtype=torch.float64)
    # The numbers are float32, of a magnitude below 8: half a unit in their last place each.
    assert float((result.double().cpu() - printed).abs().max()) <= digits_error + 8 * 2.0**-24


def test_the_generators_error_is_smaller_than_what_the_lecture_prints():
    assert 1e-6 < float(cuda_randn_error((8, 10), 0).max()) < PRINT_ERROR / 5


def test_the_generator_gives_the_printed_inputs():
    x, bias, y = golden_inputs((8, 10))
    assert_printed(x, PRINTED["x"])
    assert_printed(bias, PRINTED["bias"])
    assert_printed(y, PRINTED["y"])


@pytest.mark.skipif(not GPU, reason="no CUDA device: torch.randn(device='cuda') needs one")
def test_the_generator_gives_what_cuda_gives():
    torch.manual_seed(0)
    for call, shape in enumerate(((8, 10), (10,), (8, 10))):
        drawn = torch.randn(shape, device="cuda").cpu().double()
        assert bool(((drawn - cuda_randn(shape, call)).abs() <= cuda_randn_error(shape, call)).all())


@BACKENDS
def test_golden_add_bias_relu_8x10(backend):
    x, bias, _ = placed(golden_inputs((8, 10)))
    assert_printed(add_bias_relu(x, bias, backend=backend), PRINTED["relu(x + bias)"])


@BACKENDS
def test_golden_lora_8x10(backend):
    x, bias, y = placed(golden_inputs((8, 10)))
    result = lora_activation(x, y, bias, 2.3, backend=backend)
    assert_printed(result, PRINTED["relu(x + 2.3 y + bias)"])


@BACKENDS
def test_golden_lora_8x8(backend):
    # Drawn in another order: x, y, bias.
    x, y, bias = placed([cuda_randn((8, 8), 0), cuda_randn((8, 8), 1), cuda_randn((8,), 2)])
    result = lora_activation(x, y, bias, 0.5, backend=backend)
    assert_printed(result, PRINTED["relu(x + 0.5 y + bias), 8x8"])


@BACKENDS
def test_golden_ones_128x512(backend):
    x = torch.ones(128, 512, device=DEVICE)
    result = add_bias_relu(x, torch.ones(512, device=DEVICE), backend=backend)
    assert torch.equal(result, torch.full_like(x, 2.0))
