"""Terms of the longest sum: a table by hand, checked by derivatives, and operations that are not known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parity.capture.longest_sums import LongestSums
from parity.capture.terms import LEAST_SUM
from tests.parity.capture.terms.operations import TABLE


def counted(function, *tensors):
    with torch.inference_mode(), LongestSums() as sums:
        function(*tensors)
    return sums


def dependent_elements(function, *tensors):
    """The most elements of one operand that one result element has a derivative to, over all results."""
    parameters = [tensor.clone().requires_grad_() for tensor in tensors]
    result = function(*parameters)
    largest = 0
    for number in result.reshape(-1):
        gradients = torch.autograd.grad(number, parameters, retain_graph=True, allow_unused=True)
        largest = max([largest, *(int(g.count_nonzero()) for g in gradients if g is not None)])
    return largest


def operands(shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]


@pytest.mark.parametrize("name", TABLE)
def test_terms_are_those_of_the_table(name):
    function, shapes, expected, _ = TABLE[name]
    sums = counted(function, *operands(shapes))
    assert sums.longest_so_far == expected
    assert not sums.unknown


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[3] is not None])
def test_the_table_counts_the_elements_that_a_result_depends_on(name):
    function, shapes, expected, added = TABLE[name]
    assert dependent_elements(function, *operands(shapes)) == expected - added


@settings(deadline=None, max_examples=60)
@given(
    transposed=st.booleans(),
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 2),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    biased=st.booleans(),
)
def test_terms_of_any_convolution(transposed, groups, inputs, outputs, kernel, stride, dilation, biased):
    shape = (groups * inputs, outputs, kernel) if transposed else (groups * outputs, inputs, kernel)
    function = F.conv_transpose1d if transposed else F.conv1d
    tensors = operands([(1, groups * inputs, 11), shape, (groups * outputs,)][: 2 + biased])

    def convolution(*tensors):
        return function(*tensors, groups=groups, stride=stride, dilation=dilation)

    elements = dependent_elements(lambda *tensors: convolution(*tensors)[:, :1], *tensors)
    assert counted(convolution, *tensors).longest_so_far == elements + biased


def test_terms_of_recurrent_layers():
    lstm, gru = nn.LSTM(3, 4, num_layers=2).eval(), nn.GRU(3, 4).eval()
    (steps,) = operands([(5, 2, 3)])
    assert counted(lstm, steps).longest_so_far == 4 + 4 + 2
    # Separate products of the input and of the hidden state, added elementwise.
    assert counted(gru, steps).longest_so_far == 4 + 1
    assert counted(nn.LSTMCell(3, 4), steps[0]).longest_so_far == 4 + 1


def test_terms_of_a_transformer_layer_in_one_operation():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
    assert counted(layer, *operands([(2, 5, 8)])).longest_so_far == 12 + 1
    assert counted(layer, *operands([(2, 30, 8)])).longest_so_far == 30


@pytest.fixture(scope="module")
def custom():
    """Operations that nobody knows: a scan with and without a derivative, a scale, and refusals."""
    with torch.library._scoped_library("parity_test", "FRAGMENT") as library:
        for schema in (
            "scan(Tensor x) -> Tensor",
            "opaque_scan(Tensor x) -> Tensor",
            "scale(Tensor x, Tensor s) -> Tensor",
            "sum_into(Tensor x, Tensor(a!) out) -> ()",
            "picky(Tensor x) -> Tensor",
            "of_integers(Tensor x) -> Tensor",
        ):
            library.define(schema)
        library.impl("scan", lambda x: x.cumsum(-1), "CompositeExplicitAutograd")
        library.impl("opaque_scan", lambda x: torch.from_numpy(x.numpy().cumsum(-1)), "CPU")
        library.impl("scale", lambda x, s: x.detach() * s.detach(), "CPU")
        library.impl("sum_into", _sum_into, "CPU")
        library.impl("picky", _picky, "CPU")
        library.impl("of_integers", lambda x: x.float().sqrt(), "CPU")
        yield torch.ops.parity_test


def _sum_into(x, out):
    out.copy_(x.detach().sum(-1))


def _picky(x):
    if (x < 2).any():
        raise ValueError("small numbers. Give larger ones")
    return x.cumsum(-1)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x[0].detach_(),
        lambda x: x.transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1),
        lambda x: torch.ops.aten.alias.default(x),
    ],
)
def test_views_in_place_are_known_and_add_nothing(operation):
    with torch.no_grad():
        sums = counted(operation, *operands([(3, 7)]))
    assert (sums.longest_so_far, sums.unknown) == (0, {})


def test_an_operation_that_is_not_known_is_measured_and_named(custom):
    (x,) = operands([(3, 7)])
    for operation in (custom.scan, custom.opaque_scan):
        sums = counted(operation, x)
        assert sums.longest_so_far == 7
        assert sums.unknown == {"": {str(operation): "7 terms are measured"}}
    sums = counted(custom.scale, x, x[:, :1])
    assert sums.unknown == {"": {"parity_test.scale": "1 term is measured"}}


def test_an_operation_that_writes_into_an_argument_is_no_move(custom):
    sums = counted(lambda x: custom.sum_into(x, torch.zeros(3)), *operands([(3, 7)]))
    assert sums.longest_so_far == 7
    assert list(sums.unknown[""]) == ["parity_test.sum_into"]


def test_an_operation_without_a_measurement_has_the_fewest_terms_of_a_sum(custom):
    sums = counted(lambda: custom.picky(torch.full((3, 7), 4.0)))
    assert sums.longest_so_far == LEAST_SUM
    assert "refuses random operands (ValueError: small numbers)" in sums.unknown[""]["parity_test.picky"]
    sums = counted(lambda: custom.of_integers(torch.arange(3)))
    assert sums.longest_so_far == LEAST_SUM
    assert "no floating-point operand" in sums.unknown[""]["parity_test.of_integers"]


def test_an_operation_of_pytorch_without_a_formula_is_measured():
    sums = counted(torch.linalg.inv, torch.eye(4))
    assert sums.unknown[""]["aten.linalg_inv_ex"] == "16 terms are measured"


def test_measured_terms_have_their_module():
    from parity.capture.torch_hooks import tapped

    class Inverse(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    model = nn.Sequential(nn.Sequential(Inverse()), nn.ReLU())
    with torch.inference_mode(), tapped(model, record_calls=True) as capture:
        model(torch.eye(3))
    assert list(capture.unknown_sums) == ["0.0"]
    assert capture.longest_sums == {"": 9, "0": 9, "0.0": 9, "1": 1}
