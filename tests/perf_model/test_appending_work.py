"""FLOPs and bytes of appending to a cache, against PyTorch's counter and the sizes of the tensors."""

from __future__ import annotations

import pytest
import torch

from configs import load_case
from parity.capture.captures import ModuleCall
from perf_model.work.model import appending_work, case_work
from tests.perf_model.recorded import Recorded, record

CASES = {name: load_case(name) for name in ("hstu_tiny", "hstu_ml1m", "stu_tiny", "stu_tiny_group")}
for title, changes in {
    "softmax": {"normalization": "softmax_rel_bias", "num_blocks": 1},
    "positional bias": {"relative_attention_bias": "positional"},
    "no bias": {"normalization": "softmax_rel_bias", "num_blocks": 1, "relative_attention_bias": "none"},
    "concatenated": {"concat_ua": True},
}.items():
    tiny = CASES["hstu_tiny"]
    CASES[title] = tiny.model_copy(update={"model": tiny.model.model_copy(update=changes)})
BLOCKS = ("SequentialTransductionUnitDense", "HSTUDense")


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def recorded(request) -> Recorded:
    return record(request.param, appending=True)


def appending_calls(recorded: Recorded) -> dict[str, ModuleCall]:
    """Calls by the tap without its prefix."""
    calls = [call for call in recorded.capture.calls if call.appends]
    assert calls
    return {call.tap.removeprefix("append:"): call for call in calls}


def test_every_call_has_its_work_and_what_has_none_is_work_of_the_forward(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    calls = appending_calls(recorded)
    assert set(calls) <= set(works)
    forward = case_work(recorded.case, recorded.shapes, 4)
    for tap in set(works) - set(calls):
        # Calls that are the forward's again are not repeated in a capture.
        assert works[tap] in (forward.get(tap), forward[tap.removesuffix("@1")]), tap


def test_flops_are_those_that_pytorch_counts(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    counted = {tap: recorded.flops(call) for tap, call in appending_calls(recorded).items()}
    assert {tap: works[tap].flops for tap in counted} == counted
    assert max(counted.values()) > 0


def test_input_bytes_are_those_of_what_is_needed_of_the_tensors_that_enter(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    for tap, call in appending_calls(recorded).items():
        needed = recorded.needed(call)
        if call.kind in BLOCKS and tap.endswith(("@1", "@2")):
            entering = appended_row_bytes(recorded, needed)
            if tap.endswith("@2"):
                entering += bytes_of_what_returns(recorded, needed)
        else:
            entering = recorded.entering_bytes(call)
            if tap == "_stu_module@1" and needed["attn_scale"] is not None:
                # Of the rows' divisors, those of the targets.
                scale = recorded.fetch(needed["attn_scale"])
                entering -= (
                    scale.nbytes - scale.nbytes // scale.shape[1] * recorded.case.model.max_num_targets
                )
        assert works[tap].input_bytes == entering, tap


def appended_row_bytes(recorded: Recorded, needed: dict) -> int:
    """Of research HSTU's sequences and its mask, the rows that are appended; of a cache, no queries.

    The whole sequence is needed of the block only whose result it is.
    """
    x, mask = recorded.fetch(needed["x"]), recorded.fetch(needed["valid_attn_mask"])
    rows, positions = x.shape[:2]
    entering = x.nbytes // positions + min(rows, positions) * mask[0].nbytes
    whole = [name for name in ("x_lengths", "all_timestamps", "delta_x_offsets") if name in needed]
    entering += sum(recorded.fetch(needed[name]).nbytes for name in whole)
    states = cached_states(needed)
    for v, _, k, _ in states:
        entering += recorded.fetch(v).nbytes + recorded.fetch(k).nbytes
    return entering + recorded.fetch(states[-1][3]).nbytes


def cached_states(needed: dict) -> list:
    return needed["cache"] if isinstance(needed["cache"], list) else [needed["cache"]]


def bytes_of_what_returns(recorded: Recorded, needed: dict) -> int:
    """Of the caches, what an append passes on and does not compute with."""
    states = cached_states(needed)
    queries = sum(recorded.fetch(q).nbytes for _, q, _, _ in states)
    return queries + sum(recorded.fetch(outputs).nbytes for *_, outputs in states[:-1])


def test_output_bytes_are_those_of_the_different_tensors_that_leave(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    for tap, call in appending_calls(recorded).items():
        leaving: list[torch.Tensor] = []
        for name in call.outputs[1 if call.path == "_input_features_preproc" else 0 :]:
            tensor = recorded.capture.tensors[name]
            # The last block's result is in its cache as well.
            if not any(torch.equal(tensor, other) for other in leaving):
                leaving.append(tensor)
        assert works[tap].output_bytes == sum(tensor.nbytes for tensor in leaving), tap


def test_weights_are_those_of_the_forward_and_of_a_bias_only_a_row(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    forward = case_work(recorded.case, recorded.shapes, 4)
    for tap in appending_calls(recorded):
        expected = forward[tap.split("@")[0]].weight_bytes
        if recorded.case.family == "hstu" and tap.startswith("_hstu") and "@" in tap:
            assert works[tap].weight_bytes <= expected, tap
        else:
            assert works[tap].weight_bytes == expected, tap


def test_appending_is_less_work_than_the_forward(recorded):
    works = appending_work(recorded.case, recorded.shapes, 4)
    stack = "_hstu" if recorded.case.family == "hstu" else "_stu_module"
    assert 0 < works[f"{stack}@1"].flops < works[stack].flops
    assert works[f"{stack}@1"].weight_bytes <= works[stack].weight_bytes


def test_a_model_without_a_cache_has_none_of_it():
    assert appending_work(load_case("dlrm_tiny"), {}, 4) == {}
    with pytest.raises(ValueError, match="'past_ids' is missing"):
        appending_work(load_case("hstu_tiny"), {}, 4)
