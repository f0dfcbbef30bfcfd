"""Operations of PyTorch as ONNX: right where torch.onnx's own graphs are not, on ONNX Runtime."""

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason="onnxruntime runs what is exported here: pip install onnxruntime")

import onnxruntime
from torch.nn import functional

from parity.runners.onnx.translations import TRANSLATIONS, embedding_bag

# Right to four units in the last place, of the largest of three roundings of an intermediate result.
UNITS = 4.0
SMALL_TO_LARGE = torch.logspace(-30, 2, 500, dtype=torch.float64)
ENDS = torch.tensor([0.0, -torch.inf, torch.inf], dtype=torch.float64)
NUMBERS = torch.cat([-SMALL_TO_LARGE, SMALL_TO_LARGE, ENDS])
FUNCTIONS = {
    "logsigmoid": (functional.logsigmoid, NUMBERS),
    "expm1": (torch.expm1, NUMBERS[NUMBERS < 88]),
    "log1p": (torch.log1p, NUMBERS[NUMBERS >= -1]),
    "logaddexp": (lambda x: torch.logaddexp(x, x.flip(0)), NUMBERS),
    "cross entropy": (
        lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none"),
        NUMBERS[NUMBERS.isfinite()],
    ),
}


def run(function, x, translations=TRANSLATIONS):
    """The function's exported graph on ONNX Runtime."""

    class Exported(torch.nn.Module):
        def forward(self, x):
            return function(x)

    program = torch.onnx.export(
        Exported().eval(), (x,), dynamo=True, verbose=False, custom_translation_table=translations
    )
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def wrong(result, truth):
    """Mask of the elements beyond four units in the last place."""
    # Exponents and subnormal results lose digits of their own.
    unit = torch.finfo(result.dtype).eps * truth.abs().clamp(min=torch.finfo(result.dtype).tiny)
    is_right = (result.double() == truth) | ((result.double() - truth).abs() <= UNITS * unit)
    is_overflow = result.isinf() & (truth.abs() > torch.finfo(result.dtype).max)
    return ~(is_right | is_overflow | (result.isnan() & truth.isnan()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_number_are_right_everywhere(name, dtype):
    function, numbers = FUNCTIONS[name]
    x = numbers.to(dtype)
    truth = function(x.double())
    assert not wrong(run(function, x), truth).any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_onnx_itself_is_wrong_there(name):
    """A translation that nothing needs any more may go."""
    function, numbers = FUNCTIONS[name]
    x = numbers.float()
    assert wrong(run(function, x, {}), function(x.double())).any()


def test_quotients_of_large_indices_are_exact():
    """torch.onnx would divide in float32, where 2^24 + 1 is 2^24."""
    indices = np.array([2**24 + 1, 3 * 2**40 + 2, -1, -3], dtype=np.int64)
    actual = run(lambda x: torch.div(x, 3, rounding_mode="floor"), torch.from_numpy(indices))
    assert actual.tolist() == (indices // 3).tolist()


def test_a_translation_refuses_what_it_was_not_written_for():
    with pytest.raises(NotImplementedError, match="only sums over bags"):
        embedding_bag(None, None, None, mode=1)
