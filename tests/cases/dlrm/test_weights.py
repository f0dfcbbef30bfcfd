"""Both DLRMs' initial weights make all layers and tables count; sums of bags are measured by the longest."""

from __future__ import annotations

import pytest
import torch

import configs
from cases.dlrm.code_rows import ENDS, with_code_rows
from cases.shipped import load_case
from parity.base.trees import map_tree
from parity.capture.torch_hooks import tapped
from parity.inputs import weights
from parity.inputs.arrays import make_inputs
from reference.int4_embedding_bags import Int4Rows
from reference.int8_embedding_bags import Int8Rows

PRECISIONS = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
CASES = [name for name in configs.list_cases() if configs.load_case(name).family in ("dlrm", "lecture_dlrm")]


def _model_and_arguments(name):
    case = load_case(name)
    model = case.build_reference()
    model.load_state_dict(weights.case_weights(case)[0], strict=True)
    inputs = make_inputs(case).typical

    def place(array):
        tensor = torch.tensor(array)
        return tensor.double() if tensor.is_floating_point() else tensor

    model = model.double()
    return model, getattr(model, case.entry), map_tree(case.entry_arguments(inputs.arrays), place)


@pytest.mark.parametrize("name", CASES)
def test_activations_are_neither_lost_nor_saturated(name):
    model, entry, arguments = _model_and_arguments(name)
    with torch.no_grad(), tapped(model) as capture:
        click = entry(**arguments)
    for tap, tensor in capture.tensors.items():
        if ".quantise" in tap:
            continue  # Codes are integers, and scales are a 255th of a row's range.
        size = float(tensor.square().mean().sqrt())
        assert 0.05 < size < 20.0, (tap, size)
    config = load_case(name).config
    if config.family != "dlrm" or config.model.top_sigmoid == len(config.model.top_widths) - 1:
        hidden = "a sigmoid that is one or zero hides what is in front of it"
        assert torch.logit(click).abs().max() < 6.0 * config.input.logit_scale, hidden
    assert click.std() > 0.01
    if name == "dlrm_tiny_weighted":
        assert {click.min().item(), click.max().item()} & {0.4, 0.6}, "no row is clamped"
        assert ((click > 0.4) & (click < 0.6)).any(), "every row is clamped"


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_changes_the_outputs(name):
    model, entry, arguments = _model_and_arguments(name)
    # Codes hide a change that is smaller than half a step.
    factor = 1.25 if getattr(load_case(name).model, "quantised", {}) else 1.01
    with torch.no_grad():
        before = entry(**arguments)
        for key, parameter in model.named_parameters():
            stored = parameter.detach().clone()
            parameter.mul_(factor)
            change = (entry(**arguments) - before).norm() / before.norm()
            # A hundredth, or a quarter, of one tensor, clear of what float32 rounds off.
            assert change > 10 * torch.finfo(torch.float32).eps, key
            parameter.copy_(stored)


@pytest.mark.parametrize(
    ("offsets", "weighted", "longest"),
    [([0, 1, 2], False, 0), ([0, 0, 1], False, 2), ([0, 1, 2], True, 1), ([0, 0, 0], False, 3)],
    ids=["a lookup moves data", "the last bag runs to the end", "weights are arithmetic", "one bag"],
)
def test_the_longest_sum_of_a_table_is_its_longest_bag(offsets, weighted, longest):
    from reference.embedding_bags import EmbeddingBag

    model = torch.nn.Sequential(EmbeddingBag(9, 4))
    indices = torch.tensor([1, 2, 3])
    per_sample_weights = torch.ones(3) if weighted else None
    with torch.inference_mode(), tapped(model, record_calls=True) as capture:
        model[0](indices, torch.tensor(offsets), per_sample_weights)
    assert capture.longest_sums["0"] == longest


def _tables_in_codes():
    """Float32 tables of the shipped cases, by the type of their codes."""
    tables = {"int8": [], "int4": []}
    for name in ("dlrm_tiny_quantised", "dlrm_tiny_int8"):
        case = load_case(name)
        initial, _ = weights.case_weights(case)
        for path, scheme in case.model.schemes.items():
            if scheme.is_of_tables:
                tables[scheme.numbers].append(pytest.param(initial[f"{path}.weight"], id=f"{name}-{path}"))
    return tables


IN_CODES = _tables_in_codes()


def _ends(codes_ND):
    return codes_ND.min().item(), codes_ND.max().item()


@pytest.mark.parametrize("table_ND", IN_CODES["int8"] + IN_CODES["int4"])
def test_tables_in_codes_have_rows_of_tiny_numbers_and_of_equal_ones(table_ND):
    """A rule of codes divides by the range of a row, which a constant row does not have."""
    sizes, ranges = table_ND.abs().amax(1), table_ND.amax(1) - table_ND.amin(1)
    assert sizes.min() < 1e-7
    assert (ranges[sizes > 1] == 0).any()
    assert (ranges > 1e-2).sum() >= len(table_ND) / 2


@pytest.mark.parametrize("table_ND", IN_CODES["int4"])
@pytest.mark.parametrize("dtype", PRECISIONS.values(), ids=PRECISIONS)
def test_codes_in_4_bits_leave_their_range_before_they_are_clamped(monkeypatch, table_ND, dtype):
    unclamped = []
    monkeypatch.setattr(torch.Tensor, "clamp", lambda codes, *ends: unclamped.append(codes) or codes)
    Int4Rows(table_ND.shape[1])(table_ND.to(dtype))
    least, greatest = _ends(*unclamped)
    assert greatest > 15
    # Numbers of half types have no least number that half precision rounds up by more than half a step.
    assert (least < 0) is (dtype is torch.float32)


@pytest.mark.parametrize("table_ND", IN_CODES["int8"] + IN_CODES["int4"])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e5])
def test_codes_in_8_bits_need_no_clamp(monkeypatch, table_ND, scale):
    unclamped = []
    monkeypatch.setattr(torch.Tensor, "clamp", lambda codes, *ends: unclamped.append(codes) or codes)
    Int8Rows()(table_ND * scale)
    least, greatest = _ends(*unclamped)
    assert -128 <= least < greatest <= 127


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("columns", [1, 3])
def test_half_of_a_small_table_stays_as_it_is(rows, columns):
    table_ND = torch.randn(rows, columns)
    replaced = with_code_rows(table_ND.clone())
    is_same = (replaced == table_ND).all(1)
    assert is_same.sum() >= rows / 2
    assert replaced.isfinite().all()
    assert not is_same[: min(rows // 2, len(ENDS))].any()
