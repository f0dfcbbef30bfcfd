"""Both DLRMs' initial weights make all layers and tables count; sums of bags are measured by the longest."""

from __future__ import annotations

import pytest
import torch

import configs
from cases.shipped import load_case
from parity.base.trees import map_tree
from parity.capture.torch_hooks import tapped
from parity.inputs import weights
from parity.inputs.arrays import make_inputs

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


def test_tables_in_codes_have_tiny_rows_beside_layers_in_codes_too():
    """A rule of codes divides by the range of a row, which a constant row does not have."""
    case = load_case("dlrm_tiny_quantised")
    initial, _ = weights.case_weights(case)
    tables = [path for path, scheme in case.model.schemes.items() if scheme.is_of_tables]
    assert tables
    for path in tables:
        rows = initial[f"{path}.weight"].abs().amax(dim=1)
        assert rows[0] < 1e-7 < 1e-2 < rows[2]
