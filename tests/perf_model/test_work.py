"""FLOPs and bytes from the configuration, against PyTorch's counter and the sizes of the tensors."""

from __future__ import annotations

import pytest
import torch

from configs import load_case
from parity.base.quantisation import SCHEMES, operands
from parity.base.work import Work
from perf_model.work.model import case_work
from perf_model.work.parts import around, chain, linear, lookup
from perf_model.work.quantised import product, row_bytes
from tests.perf_model.recorded import Recorded, record

CASES = (
    *("hstu_tiny", "hstu_tiny_rated", "hstu_tiny_combined", "hstu_ml1m", "stu_tiny", "stu_tiny_group"),
    *("stu_dlrmv3", "dlrm_tiny", "dlrm_tiny_md", "dlrm_tiny_qr", "dlrm_tiny_weighted", "dlrm_mlperf"),
    *("dlrm_lecture", "dlrm_lecture_index", "dlrmv3_tiny", "dlrmv3_tiny_plain"),
)


@pytest.fixture(scope="module", params=CASES)
def recorded(request) -> Recorded:
    return record(load_case(request.param))


def test_flops_are_those_that_pytorch_counts(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    counted = {call.tap: recorded.flops(call) for call in recorded.capture.calls}
    assert {tap: works[tap].flops for tap in counted} == counted
    assert works[""].flops == recorded.total_flops > 0


def test_every_call_has_its_work_and_nothing_else_has(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    assert set(works) == {call.tap for call in recorded.capture.calls} | {""}


def test_input_bytes_are_those_of_the_tensors_that_enter(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    for call in recorded.capture.calls:
        assert works[call.tap].input_bytes == recorded.entering_bytes(call), call.tap


def test_output_bytes_are_those_of_the_tensors_that_leave(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    for call in recorded.capture.calls:
        outputs = [recorded.capture.tensors[name] for name in call.outputs]
        if call.path == "_input_features_preproc":
            outputs = outputs[1:]  # the lengths are passed on
        assert works[call.tap].output_bytes == sum(out.nbytes for out in outputs), call.tap


# Modules of which not all parameters are read: lookups, and what holds them.
LOOKUPS = ("Embedding", "EmbeddingBag", "QREmbeddingBag", "RelativeBucketedTimeAndPositionBasedBias")


def looks_up(module: torch.nn.Module) -> bool:
    return any(
        type(inner).__name__ in LOOKUPS or "Positional" in type(inner).__name__ for inner in module.modules()
    )


def test_weight_bytes_are_those_of_the_parameters_and_of_rows_at_most(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    for call in recorded.capture.calls:
        module = recorded.model.get_submodule(call.path)
        own = sum(parameter.nbytes for parameter in module.parameters())
        own += sum(buffer.nbytes for buffer in module.buffers() if buffer.dtype == torch.int64)
        if looks_up(module):
            assert 0 < works[call.tap].weight_bytes <= own, call.tap
        elif call.kind != "FeatureInteraction":  # its pairs are constants of the graph
            assert works[call.tap].weight_bytes == own, call.tap


def test_half_precision_halves_numbers_and_leaves_indices(recorded):
    wide = case_work(recorded.case, recorded.shapes, 4)
    narrow = case_work(recorded.case, recorded.shapes, 2)
    for tap in wide:
        assert narrow[tap].flops == wide[tap].flops
        assert wide[tap].bytes / 2 <= narrow[tap].bytes <= wide[tap].bytes
    assert narrow[""].bytes < wide[""].bytes


def test_more_rows_never_take_less_work(recorded):
    once = case_work(recorded.case, recorded.shapes, 4)
    axis = {"lS_o": 1}
    shared = {"item_ids"}
    doubled = {
        name: tuple(2 * size if place == axis.get(name, 0) else size for place, size in enumerate(shape))
        if name not in shared
        else shape
        for name, shape in recorded.shapes.items()
    }
    twice = case_work(recorded.case, doubled, 4)
    for tap in once:
        assert twice[tap].flops >= once[tap].flops
        assert twice[tap].bytes >= once[tap].bytes
    assert twice[""].flops == 2 * once[""].flops


def test_a_wrong_count_would_be_seen(recorded):
    works = case_work(recorded.case, recorded.shapes, 4)
    call = max(recorded.capture.calls, key=lambda call: works[call.tap].flops)
    assert works[call.tap].flops > 0
    assert recorded.flops(call) != works[call.tap].flops + 2


@pytest.mark.parametrize("item", [0, 1, 8])
def test_a_size_that_no_precision_has_is_refused(item):
    case = load_case("dlrm_tiny")
    with pytest.raises(ValueError, match="item: .* give 2 or 4"):
        case_work(case, {}, item)


def test_a_missing_array_is_named():
    with pytest.raises(ValueError, match="'past_ids' is missing"):
        case_work(load_case("hstu_tiny"), {}, 4)


def test_counts_cannot_be_negative():
    with pytest.raises(ValueError, match="flops: -1 is negative"):
        Work(flops=-1)


def test_a_linear_layer_by_hand():
    assert linear(rows=3, fan_in=5, fan_out=7, item=4) == Work(210, 4 * 42, 4 * 15, 4 * 21)


def test_a_lookup_reads_no_row_twice_and_no_more_than_there_are():
    assert lookup(indices=100, table_rows=7, dim=3, item=4).weight_bytes == 7 * 3 * 4
    assert lookup(indices=5, table_rows=7, dim=3, item=4).weight_bytes == 5 * 3 * 4


def test_a_container_moves_its_own_inputs_and_outputs_only():
    works = chain([5, 7, 2], rows=3, item=4, first="mlp")
    assert works["mlp"].flops == works["mlp.0"].flops + works["mlp.2"].flops
    assert works["mlp"].input_bytes == 3 * 5 * 4
    assert works["mlp"].output_bytes == 3 * 2 * 4
    assert around(Work(1, 2, 3, 4), inputs=5, outputs=6) == Work(1, 2, 5, 6)


def test_a_quantised_product_by_hand():
    """Codes, scales in the model's type, and the floats that enter and leave."""
    sizes = {"rows": 3, "inputs": 5, "outputs": 7, "item": 4}
    assert product(**sizes) == linear(rows=3, fan_in=5, fan_out=7, item=4, bias=False)
    assert product(**sizes, bias=True) == linear(rows=3, fan_in=5, fan_out=7, item=4)
    weights = {
        "int8_tensor": 35 + 4 * 2,
        "fp8_channel": 35 + 4 * 8,
        "int8_weights_channel": 35 + 4 * 7,
        "int4_weights_blocks": 18 + 4 * 7,
    }
    for name, expected in weights.items():
        assert product(**sizes, scheme=SCHEMES[name]) == Work(210, expected, 4 * 15, 4 * 21)
    assert [operands(SCHEMES[name], "bf16") for name in weights] == ["int8", "fp8", "bf16", "bf16"]
    assert operands(None, "fp32") == "fp32"


def test_a_row_has_its_codes_with_scale_and_bias():
    assert [row_bytes(17, 4, SCHEMES.get(name)) for name in ("", "int8_rows", "int4_rows")] == [68, 25, 13]


def test_a_row_in_8_bits_is_its_codes_a_scale_and_a_bias():
    config = load_case("dlrm_tiny_int8")
    floats = config.model_copy(update={"model": config.model.model_copy(update={"quantised": {}})})
    shapes = {"counts": (8, 13), "lS_o": (4, 8)} | {f"lS_i_{table}": (5,) for table in range(4)}
    own, plain = (case_work(case, shapes, 4) for case in (config, floats))
    assert [own[f"emb_l.{table}"].weight_bytes for table in range(4)] == [5 * 14, 5 * 14, 5 * 14, 5 * 24]
    assert [plain[f"emb_l.{table}"].weight_bytes for table in range(4)] == [5 * 24] * 4
