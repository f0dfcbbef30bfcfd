"""The fused forward of research HSTU against the reference model, from the same parameters."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from configs import load_case
from kernels.hstu_forward import GraphedHSTUForward, HSTUForward, Settings
from parity.precision import PRECISIONS
from parity.verdict import Verdict, judge
from reference.build import build_hstu

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_gpu = pytest.mark.skipif(not GPU, reason="no CUDA device")
# In a block: norm, projection, bias, attention, norm, output; besides, the input and the final norm.
MODULES_OF_A_BLOCK = 6


def small_model(**changes):
    """Two blocks of the public shape with few items; each block moves its input by as much as that is
    large.
    """
    config = load_case("hstu_ml1m").model
    sizes = {"num_items": 60, "num_blocks": 2, "max_sequence_len": 40, "num_heads": 2}
    config = config.model_copy(update={**sizes, "attention_dim": 25, "linear_dim": 25, **changes})
    torch.manual_seed(0)
    model = build_hstu(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_uvqk"):
                parameter.normal_(std=config.item_embedding_dim**-0.5)
            elif "_rel_attn_bias" in name or name.endswith(("_o.bias", "_item_emb.weight")):
                parameter.normal_()
    return config, model


def settings_of(config, model) -> Settings:
    return Settings(
        config.num_heads,
        config.attention_dim,
        config.linear_dim,
        model.sequence_width,
        config.bucket_divisor,
        config.epsilon,
    )


def batch(model, lengths: tuple[int, ...]):
    """Padded lengths, ids and timestamps, with one id of 0 inside a row."""
    width = model.sequence_width
    ids = torch.randint(1, 61, (len(lengths), width))
    ids[0, 1] = 0
    # Seconds, below the first difference whose bucket depends on a logarithm's last bit: a GPU has its own.
    times = torch.randint(37_000, (len(lengths), width)).sort(1).values
    return torch.tensor(lengths), ids, times


def rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, N, ...) -> (L, ...)."""
    return torch.cat([x[row, :length] for row, length in enumerate(lengths.tolist())])


def forward_of(model, lengths, ids, times) -> torch.Tensor:
    with torch.no_grad():
        encoded = model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": times})
    return rows(encoded, lengths)


def verdict(config, model, precision: str, lengths: tuple[int, ...], run) -> Verdict:
    """Judge `run(state, flat ids, offsets, timestamps, longest)`."""
    dtype = PRECISIONS[precision].dtype
    model = model.to(dtype)
    inputs = batch(model, lengths)
    wide = build_hstu(config).double()
    wide.load_state_dict(model.state_dict())
    oracle = forward_of(wide, *inputs)
    reference = forward_of(model.to(DEVICE), *(x.to(DEVICE) for x in inputs)).cpu()
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    flat = rows(inputs[1], inputs[0])
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    result = run(state, flat.to(DEVICE), offsets.to(DEVICE), inputs[2].to(DEVICE), max(lengths)).cpu()
    longest_sum = max(model.sequence_width, config.item_embedding_dim, config.num_heads * config.linear_dim)
    modules = MODULES_OF_A_BLOCK * config.num_blocks + 2
    return judge(oracle, reference, result, PRECISIONS[precision], longest_sum, modules=modules)


LENGTHS = (30, 1, 51, 17)


@needs_triton
@pytest.mark.parametrize(
    ("precision", "dot_precision"), [("fp32", "ieee"), ("fp32", "fp16x3"), ("fp16", "ieee"), ("bf16", "ieee")]
)
def test_the_fused_forward_is_the_model(precision, dot_precision):
    if precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    config, model = small_model()
    settings = settings_of(config, model)
    found = verdict(
        config, model, precision, LENGTHS, lambda state, *a: HSTUForward(state, settings, dot_precision)(*a)
    )
    assert found.passed, found.reason


@needs_triton
@pytest.mark.parametrize(
    "changes",
    [
        {"item_embedding_dim": 32, "num_heads": 1, "attention_dim": 16, "linear_dim": 40},
        {"item_embedding_dim": 100, "attention_dim": 50, "linear_dim": 50},
        {"relative_attention_bias": "positional"},
    ],
    ids=str,
)
def test_other_shapes_are_the_model_too(changes):
    config, model = small_model(**changes)
    settings = settings_of(config, model)
    found = verdict(config, model, "fp32", LENGTHS, lambda state, *a: HSTUForward(state, settings)(*a))
    assert found.passed, found.reason


FAULTS = {
    "divisor": lambda s: replace(s, divisor=s.divisor - 1),
    "epsilon": lambda s: replace(s, epsilon=1e-2),
    "bucket divisor": lambda s: replace(s, bucket_divisor=0.302),
    "heads": lambda s: replace(s, num_heads=1, attention_dim=50, linear_dim=50),
}


@needs_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_setting_is_caught(fault):
    config, model = small_model()
    settings = FAULTS[fault](settings_of(config, model))
    found = verdict(config, model, "fp32", LENGTHS, lambda state, *a: HSTUForward(state, settings)(*a))
    assert not found.passed


@needs_triton
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("name", ["_uvqk", "_o.bias", "_rel_attn_bias._pos_w", "_rel_attn_bias._ts_w"])
def test_every_parameter_of_a_block_counts(name, block):
    config, model = small_model()
    settings = settings_of(config, model)

    def run(state, *arguments):
        key = f"_hstu._attention_layers.{block}.{name}"
        return HSTUForward({**state, key: state[key] * 1.01}, settings)(*arguments)

    assert not verdict(config, model, "fp32", LENGTHS, run).passed


@needs_gpu
@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_graph_serves_smaller_batches(precision):
    config, model = small_model()
    settings = settings_of(config, model)

    def run(state, ids, offsets, times, longest):
        graph = GraphedHSTUForward(HSTUForward(state, settings), 6, 300, longest, times.size(1))
        noise = torch.randint(1, 61, (300,), device=DEVICE)
        graph(noise, torch.arange(7, device=DEVICE) * 50, torch.zeros(6, times.size(1), device=DEVICE).long())
        return graph(ids, offsets, times)

    found = verdict(config, model, precision, LENGTHS, run)
    assert found.passed, found.reason


@needs_triton
def test_no_rows_give_no_rows():
    config, model = small_model()
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model))
    times = torch.zeros(2, 51, dtype=torch.int64, device=DEVICE)
    ids = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert forward(ids, torch.zeros(3, dtype=torch.int64, device=DEVICE), times, 0).shape == (0, 50)


@needs_triton
def test_what_does_not_fit_is_refused_by_name():
    config, model = small_model()
    settings = settings_of(config, model)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match="dot_precision='fast'"):
        HSTUForward(state, settings, "fast")
    with pytest.raises(ValueError, match="_embedding_module._item_emb.weight is missing"):
        HSTUForward({}, settings)
    with pytest.raises(ValueError, match=r"_uvqk: shape \(50, 200\), but num_heads=3"):
        HSTUForward(state, replace(settings, num_heads=3))
    key = "_hstu._attention_layers.1._rel_attn_bias._pos_w"
    with pytest.raises(ValueError, match=f"{key} is missing"):
        HSTUForward({name: x for name, x in state.items() if name != key}, settings)
