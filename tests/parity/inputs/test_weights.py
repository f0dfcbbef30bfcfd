"""Initial weights make every module count, and are the same for the same seed."""

import pytest
import torch
import torch.nn.functional as F

import configs
from cases.hstu.synthetic import synthetic
from cases.hstu.weight_scales import weight_scale
from cases.shipped import load_case
from parity.inputs import weights
from reference.build import build_hstu

CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "hstu"]
#: The most rows of positions in a batch; a case with more of them is looked at with fewer users.
_MOST_ROWS = 2**11


def _small(name):
    """A case cut down in what has no part in the test and takes the time.

    The item table's size has none: a row's scale does not depend on it. Nor has the number of users, who are
    independent: every number here is a mean over all valid rows. The length has one, since a bias that
    differs from key to key averages out over them, and stays what it is.
    """
    case = configs.load_case(name)
    users = max(1, min(case.input.batch_size, _MOST_ROWS // case.model.max_sequence_len))
    return case.model_copy(
        update={
            "model": case.model.model_copy(update={"num_items": 200}),
            "input": case.input.model_copy(update={"batch_size": users}),
        }
    )


def _model(case):
    model = build_hstu(case.model)
    model.load_state_dict(weights.initial_weights(model, case.input.seed, weight_scale), strict=True)
    return model


def _score(model, inputs):
    arrays = {name: torch.tensor(array) for name, array in inputs.arrays.items()}
    payloads = {"timestamps": arrays["timestamps"], "ratings": arrays["ratings"]}
    with torch.no_grad():
        return model.score(arrays["past_lengths"], arrays["past_ids"], payloads, arrays["item_ids"])


def _positions(inputs):
    """Mask (B, W') of the positions of items. Ratings may have positions of their own."""
    return torch.tensor(inputs.valid_mask()).repeat_interleave(inputs.positions_per_item, dim=1)


@pytest.fixture
def observed():
    """Runs a case and returns, by block, the valid rows of what went in and out of the parts named."""

    def observe(name):
        case = _small(name)
        model, inputs = _model(case), synthetic(case)
        mask = _positions(inputs)
        seen = {"block": [], "without bias": [], "epsilon": []}

        def on_block(_, args, kwargs, output):
            x = (args[0] if args else kwargs["x"])[mask]
            seen["block"].append(((output[0][mask] - x).norm() / x.norm()).item())

        def on_attention(module, args, kwargs, output):
            named = dict(zip(("q", "k", "v", "attn_bias", "valid_attn_mask"), args, strict=False)) | kwargs
            if named["attn_bias"] is not None:
                named["attn_bias"] = torch.zeros_like(named["attn_bias"])
                seen["without bias"].append(_distance(module.forward(**named)[mask], output[mask]))

        def on_norm(_, args, kwargs, output):
            x = (args[0] if args else kwargs["x"])[mask]
            seen["epsilon"].append(_distance(F.layer_norm(x, x.shape[-1:], eps=1e-5), output[mask]))

        for layer in model._hstu._attention_layers:
            layer.register_forward_hook(on_block, with_kwargs=True)
            layer._attn.register_forward_hook(on_attention, with_kwargs=True)
            layer._norm_input.register_forward_hook(on_norm, with_kwargs=True)
            layer._norm_attn_output.register_forward_hook(on_norm, with_kwargs=True)
        _score(model, inputs)
        assert len(seen["block"]) == case.model.num_blocks
        return seen

    return observe


def _distance(changed, original):
    return ((changed - original).norm() / original.norm()).item()


@pytest.mark.parametrize("name", CASES)
def test_initial_weights_make_every_block_bias_and_epsilon_count(observed, name):
    seen = observed(name)
    assert all(0.3 < ratio < 3.0 for ratio in seen["block"]), seen["block"]
    assert all(change > 0.1 for change in seen["without bias"]), seen["without bias"]
    # Ten times what float32 rounds off.
    assert all(change > 10 * torch.finfo(torch.float32).eps for change in seen["epsilon"]), seen["epsilon"]


@pytest.mark.parametrize("name", ["hstu_tiny", "hstu_tiny_rated", "hstu_tiny_combined"])
def test_every_parameter_changes_the_scores(name):
    case = configs.load_case(name)
    inputs = synthetic(case)
    model = _model(case)
    encoded, _, scores = _score(model, inputs)
    mask = _positions(inputs)
    for key, parameter in model.named_parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.001)
        changed, _, changed_scores = _score(model, inputs)
        # A thousandth of one tensor, in float32, clear of round-off: a hundred times eps.
        assert _distance(changed[mask], encoded[mask]) > 100 * torch.finfo(torch.float32).eps, key
        assert not torch.equal(changed_scores, scores), key
        with torch.no_grad():
            parameter.copy_(before)


def test_initial_weights_are_a_whole_state_dict_of_the_seed():
    case = configs.load_case("hstu_tiny_combined")
    model = build_hstu(case.model)
    first, again, other = (weights.initial_weights(model, seed, weight_scale) for seed in (0, 0, 1))
    assert list(first) == list(model.state_dict())
    assert all(first[name].dtype == torch.float32 for name, _ in model.named_parameters())
    for name, buffer in model.named_buffers():
        assert torch.equal(first[name], buffer)
    assert weights.digest(first) == weights.digest(again) != weights.digest(other)
    assert (first["_embedding_module._item_emb.weight"][0] != 0).all()


def test_values_of_a_case_replace_drawn_ones():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5, 4)
            self.tied = torch.nn.Linear(4, 5)
            self.tied.weight = self.table.weight
            self.turn = torch.nn.Parameter(torch.empty(2, 3, dtype=torch.complex64))
            self.register_buffer("places", torch.arange(3))

    def with_a_constant_row(name, own):
        assert name != "tied.weight"
        if name == "tied.bias":
            return None
        if name == "table.weight":
            own[1] = 0.25
            return own
        return own + 1

    own, changed = (weights.initial_weights(Model(), 0, None, *hook) for hook in ((), (with_a_constant_row,)))
    assert (changed["table.weight"][1] == 0.25).all()
    assert torch.equal(changed["table.weight"][2:], own["table.weight"][2:])
    assert torch.equal(changed["tied.weight"], changed["table.weight"])
    assert torch.equal(changed["tied.bias"], own["tied.bias"])
    assert torch.equal(changed["turn"], own["turn"] + 1)
    assert torch.equal(changed["places"], own["places"] + 1)


def test_a_deeper_model_keeps_the_values_of_the_common_layers():
    case = configs.load_case("hstu_tiny")
    deeper = case.model.model_copy(update={"num_blocks": 5})
    shallow = weights.initial_weights(build_hstu(case.model), 0, weight_scale)
    deep = weights.initial_weights(build_hstu(deeper), 0, weight_scale)
    assert all(torch.equal(tensor, deep[name]) for name, tensor in shallow.items())


def test_a_parameter_without_an_override_has_the_scale_of_its_role():
    class Derived(torch.nn.Conv1d):
        """A layer with PyTorch's own weight, whose sum is over its last two axes."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5000, 16)
            self.layer = torch.nn.Linear(400, 300)
            self.norm = torch.nn.LayerNorm(4000)
            self.own = torch.nn.Parameter(torch.empty(300, 20, 20))
            self.kernel = torch.nn.Parameter(torch.empty(100, 4, 10, 10))
            self.derived = Derived(20, 300, 20)
            self.gate = torch.nn.Parameter(torch.empty(4000))
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

    tensors = weights.initial_weights(Model(), 0)
    assert tensors.pop("scale").shape == ()
    expected = {
        "table.weight": 0.5,
        "layer.weight": 0.05,
        "layer.bias": 0.3,
        "norm.weight": 1.0,
        "norm.bias": 0.3,
        # A stack of 300 matrices, whose product has a sum of 20 terms.
        "own": 20**-0.5,
        "kernel": 0.05,
        "derived.weight": 0.05,
        "derived.bias": 0.3,
        "gate": 0.3,
    }
    assert {
        name: pytest.approx(float(tensor.std()), rel=0.15) for name, tensor in tensors.items()
    } == expected


def test_rounding_touches_floats_only():
    values = {"w": torch.tensor([1.0, 1.0 + 2**-12]), "n": torch.tensor([7]), "b": torch.tensor([True])}
    half = weights.rounded(values, torch.bfloat16)
    assert [half[name].dtype for name in values] == [torch.bfloat16, torch.int64, torch.bool]
    wide = weights.rounded(half, torch.float64)
    assert wide["w"].tolist() == [1.0, 1.0]
    assert wide["w"].dtype == torch.float64
    assert torch.equal(weights.rounded(values, torch.float32)["w"], values["w"])


def test_square_weights_tell_a_transposition():
    initial = weights.initial_weights(torch.nn.Linear(5, 5), 0)["weight"]
    assert (initial - initial.T).norm() > 0.5 * initial.norm()


def test_a_case_has_the_weights_of_its_seed():
    case = load_case("dlrm_tiny")
    first, again, other = (
        weights.case_weights(case.with_overrides(seed=seed))[0]["bot_l.0.weight"] for seed in (7, 7, 8)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_statistics_of_norms_are_drawn_and_other_buffers_stay():
    """The constructor's mean of 0 and variance of 1 hide a port that leaves them out."""

    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(400)
            self.again = self.norm
            self.register_buffer("positions", torch.zeros(3))

    model = Normed()
    drawn = weights.initial_weights(model, 0)
    assert set(drawn) == set(model.state_dict())
    assert drawn["norm.running_mean"].std().item() == pytest.approx(0.3, rel=0.1)
    variance = drawn["norm.running_var"]
    assert variance.log().mean().item() == pytest.approx(0.0, abs=0.1)
    assert variance.log().std().item() == pytest.approx(0.5, rel=0.1)
    assert torch.equal(drawn["again.running_var"], variance)
    assert drawn["norm.num_batches_tracked"] == 0
    assert torch.equal(drawn["positions"], torch.zeros(3))
    assert not torch.equal(weights.initial_weights(model, 1)["norm.running_var"], variance)
