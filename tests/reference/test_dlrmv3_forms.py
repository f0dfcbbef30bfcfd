"""DLRMv3 with jagged rows and with fused attention: the function of the dense model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.inputs.arrays import make_inputs, poisoned_inputs
from parity.inputs.weights import case_weights
from reference.build import build_dlrmv3, build_dlrmv3_fused
from tests.reference.rounding import max_difference, rounding_bound

CASES = ("dlrmv3_tiny", "dlrmv3_tiny_plain")
FORMS = ("jagged", "fused", "whole_layers")
LONGEST_SUM = 64
"""No sum of these cases has more terms."""


def run(case, arrays, dtype=torch.float64, change=lambda model: None):
    model = case.build_reference()
    model.load_state_dict(case_weights(case)[0])
    change(model)
    model = model.to(dtype)
    arguments = {name: torch.tensor(array) for name, array in case.entry_arguments(arrays).items()}
    with torch.no_grad():
        return model(**{name: x.to(dtype) if x.is_floating_point() else x for name, x in arguments.items()})


def limit(case, arrays, exact):
    return rounding_bound(LONGEST_SUM, run(case, arrays, torch.float32), exact)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_a_form_equals_the_dense_model_on_every_batch(name, form):
    case = load_case(name)
    for batch in make_inputs(case).batches:
        dense = run(case, batch.inputs.arrays)
        actual = run(case.form(form), batch.inputs.arrays)
        assert max_difference(actual, dense) <= limit(case, batch.inputs.arrays, dense), batch.name


@pytest.mark.parametrize("form", FORMS)
def test_padding_is_not_read(form):
    case = load_case("dlrmv3_tiny")
    inputs = make_inputs(case).typical
    clean, poisoned = (
        run(case.form(form), arrays.arrays) for arrays in (inputs, poisoned_inputs(case, inputs))
    )
    assert torch.equal(clean, poisoned)


@pytest.mark.parametrize("form", FORMS)
def test_every_layer_counts(form):
    case = load_case("dlrmv3_tiny")
    arrays = make_inputs(case).typical.arrays
    right = run(case.form(form), arrays)

    def change(model):
        with torch.no_grad():
            model._hstu_transducer._stu_module._stu_layers[1]._output_norm_bias += 1

    changed = run(case.form(form), arrays, change=change)
    assert max_difference(changed, right) > 100 * limit(case, arrays, right)


@pytest.mark.parametrize("form", ["fused", "whole_layers"])
def test_arguments_of_a_fixed_graph_have_the_shapes_of_the_padded_batch_and_the_same_result(form):
    case = load_case("dlrmv3_tiny").form(form)
    arrays = make_inputs(case).typical.arrays
    fixed = case.fixed_arguments(arrays)
    rows, own = fixed["valid_rows"], case.entry_arguments(arrays)["valid_rows"]
    assert rows.size == case.batch_size_of(arrays) * case.width(arrays) > own.size
    assert np.array_equal(rows[: own.size], own)
    model = case.build_reference()
    model.load_state_dict(case_weights(case)[0])
    results = [
        model(**{name: torch.tensor(array) for name, array in arguments.items()})
        for arguments in (fixed, case.entry_arguments(arrays))
    ]
    assert torch.equal(*results)


def test_layouts_and_heads_that_do_not_exist_are_refused():
    model = load_case("dlrmv3_tiny").model
    with pytest.raises(ValueError, match="layout='ragged'"):
        build_dlrmv3(model, "ragged")
    with pytest.raises(ValueError, match="hidden_dim=257: fused attention takes heads of at most 256"):
        build_dlrmv3_fused(model.model_copy(update={"hidden_dim": 257}))


def kept(case, arrays, cache):
    """The cache of `prefill` as `extend` takes it: rows of context and history, and zeros behind."""
    width, (firsts, counts) = case.width(arrays), case.shared_rows(arrays)
    tensors = [tensor for state in cache for tensor in state]
    batch = [tensor.new_zeros(len(counts), width, tensor.shape[-1]) for tensor in tensors]
    for target, source in zip(batch, tensors, strict=True):
        for user, (first, count) in enumerate(zip(firsts, counts, strict=True)):
            target[user, :count] = source.flatten(0, -2)[first : first + count]
    return batch


@pytest.mark.parametrize("form", [None, "fused", "whole_layers"])
@pytest.mark.parametrize("name", CASES)
def test_a_cache_gives_the_predictions_of_other_candidates(name, form):
    dense = load_case(name)
    case = dense.form(form) if form else dense
    arrays = make_inputs(case).typical.arrays
    model = case.build_reference()
    model.load_state_dict(case_weights(dense)[0])
    model = model.double().eval()
    others = {**arrays}
    for part in ("candidate_embeddings", "candidate_category_embeddings"):
        others[part] = arrays[part][:, ::-1].copy()
    first, second = (
        {
            part: tensor.double() if tensor.is_floating_point() else tensor
            for part, array in case.entry_arguments(own).items()
            for tensor in [torch.tensor(array)]
        }
        for own in (arrays, others)
    )
    with torch.no_grad():
        predictions, cache = case.keep(model, first)
        batch = kept(case, arrays, cache)
        before = [tensor.clone() for tensor in batch]
        resumed = case.resume(model, {part: second[part] for part in case.resumed}, batch)
        assert torch.equal(predictions, model(**first))
        exact = model(**second)
    assert all(map(torch.equal, batch, before))
    assert max_difference(resumed, exact) <= limit(case, others, exact)
    assert max_difference(predictions, exact) > 100 * limit(case, others, exact)
