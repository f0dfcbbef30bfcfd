"""A small research HSTU, its batches, and the verdict on its fused forward."""

from __future__ import annotations

import functools

import torch

from configs import load_case
from kernels.hstu_forward import GraphedHSTUForward, HSTUForward, Settings
from kernels.hstu_forward.schedules import AttentionTile, EmbedTile, Schedule, Tile, Wide
from parity.base.precision import PRECISIONS
from parity.verdict.rule import Verdict, judge
from reference.build import build_hstu
from tests.kernels.marks import DEVICE

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


def sized(dim: int, heads: int, attention_dim: int, linear_dim: int) -> dict[str, int]:
    """D, H, K and V as changes of `small_model`."""
    return {
        "item_embedding_dim": dim,
        "num_heads": heads,
        "attention_dim": attention_dim,
        "linear_dim": linear_dim,
    }


def settings_of(config, model) -> Settings:
    return Settings(
        config.num_heads,
        config.attention_dim,
        config.linear_dim,
        model.sequence_width,
        config.bucket_divisor,
        config.epsilon,
    )


def batch(model, lengths: tuple[int, ...], scale: int = 1):
    """Padded lengths, ids and timestamps, with one id of 0 inside a row."""
    width = model.sequence_width
    ids = torch.randint(1, 61, (len(lengths), width))
    ids[0, 1] = 0
    # Seconds, below the first difference whose bucket depends on a logarithm's last bit: a GPU has its own.
    times = torch.randint(37_000, (len(lengths), width)).sort(1).values
    return torch.tensor(lengths), ids, times * scale


def rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, N, ...) -> (L, ...)."""
    return torch.cat([x[row, :length] for row, length in enumerate(lengths.tolist())])


def forward_of(model, lengths, ids, times) -> torch.Tensor:
    with torch.no_grad():
        encoded = model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": times})
    return rows(encoded, lengths)


def verdict(config, model, precision: str, lengths: tuple[int, ...], run, scale: int = 1) -> Verdict:
    """Judge `run(state, flat ids, offsets, timestamps, longest)`; timestamps `scale` times as far apart."""
    dtype = PRECISIONS[precision].dtype
    model = model.to(dtype)
    inputs = batch(model, lengths, scale)
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


# Triton's kernels, on every device.
triton_forward = functools.partial(HSTUForward, backend="triton")
LENGTHS = (30, 1, 51, 17)
# Blocks of rows inside blocks of columns and the other way round, each row's end in, before and behind one.
TILES = (
    AttentionTile(16, 32, 4, 1),
    AttentionTile(32, 16, 4, 2, is_chained=True),
    AttentionTile(16, 16, 4, 1, block_c=16, is_unrolled=True),
    AttentionTile(16, 64, 4, 1, block_c=128, is_unrolled=True),
    AttentionTile(16, 16, 4, 1, is_ahead=True),
)
BOUNDARIES = (16, 0, 33, 1, 32, 51, 17)


def wide(project: Tile, attention: AttentionTile, output: Tile) -> Schedule:
    return Schedule(EmbedTile(16), Wide(project, attention, output))


# For D 100 and two heads of 50: an embedding has 128 columns, a projection 512, the output's factor 128.
WIDE = {
    "all at once": wide(
        Tile(16, 32, 128, 4, 1), AttentionTile(16, 64, 4, 1, is_unrolled=True), Tile(16, 32, 128, 4, 1)
    ),
    "in steps": wide(Tile(32, 64, 32, 4, 1), AttentionTile(32, 16, 4, 1), Tile(16, 64, 32, 4, 1)),
    "whole rows": wide(
        Tile(16, 128, 64, 4, 1), AttentionTile(16, 32, 4, 1, heads=2), Tile(32, 128, 64, 4, 1)
    ),
    "shared columns": wide(
        Tile(16, 32, 128, 4, 1),
        AttentionTile(16, 16, 4, 1, is_unrolled=True, splits=2),
        Tile(16, 32, 128, 4, 1),
    ),
    "shared columns, steps": wide(
        Tile(32, 64, 32, 4, 1),
        AttentionTile(16, 16, 4, 1, is_unrolled=True, splits=3),
        Tile(32, 128, 64, 4, 1),
    ),
}


def assert_two_parts_have_their_range(factor: float, backend: str, **changes) -> None:
    """Keys of 1e-4 pass, and products beyond 2,047 are NaN."""
    config, model = small_model(**changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_uvqk"):
                parameter.mul_(factor)
    settings = settings_of(config, model)
    actual = verdict(
        config,
        model,
        "fp32",
        LENGTHS,
        lambda state, *a: HSTUForward(state, settings, "fp16x3", backend=backend)(*a),
    )
    assert actual.passed == (factor < 1.0), actual.reason
    assert actual.passed or "NaN or Inf" in actual.reason


def assert_far_times_are_exact_or_nan(precision: str, dot_precision: str, backend: str, **changes) -> None:
    """Times 3e9 times as far apart pass; a sequence with a time 2^50 seconds ahead is NaN, and no other."""
    config, model = small_model(**changes)
    settings = settings_of(config, model)
    actual = verdict(
        config,
        model,
        precision,
        LENGTHS,
        lambda state, *a: HSTUForward(state, settings, dot_precision, backend=backend)(*a),
        scale=3 * 10**9,
    )
    assert actual.passed, actual.reason
    lengths, ids, times = batch(model, LENGTHS)
    times[2, 20] += 1 << 50
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    offsets = torch.tensor((0, *LENGTHS)).cumsum(0)
    arguments = (x.to(DEVICE) for x in (rows(ids, lengths), offsets, times))
    states = HSTUForward(state, settings, dot_precision, backend=backend)(*arguments, max(LENGTHS)).cpu()
    is_nan = states.isnan().any(1)
    # All of that sequence, since no weight times NaN is 0, and nothing of the others.
    start, end = offsets[2:4].tolist()
    assert is_nan[start:end].all()
    assert not is_nan[:start].any()
    assert not is_nan[end:].any()


def assert_a_graph_serves_smaller_batches(
    precision: str, dot_precision: str, backend: str, **changes
) -> None:
    config, model = small_model(**changes)
    settings = settings_of(config, model)

    def run(state, ids, offsets, times, longest):
        forward = HSTUForward(state, settings, dot_precision, backend=backend)
        graph = GraphedHSTUForward(forward, 6, 300, longest, times.size(1))
        noise = torch.randint(1, 61, (300,), device=DEVICE)
        graph(noise, torch.arange(7, device=DEVICE) * 50, torch.zeros(6, times.size(1), device=DEVICE).long())
        return graph(ids, offsets, times)

    actual = verdict(config, model, precision, LENGTHS, run)
    assert actual.passed, actual.reason
