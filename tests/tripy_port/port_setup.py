"""Small ported models, batches and the rounding bound that the tests of the port share. No PyTorch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import nvtripy as tp

from configs import HSTUConfig
from tripy_port.build import build_hstu
from tripy_port.hstu_dense import HSTUDenseModel

MAX_LENGTH = 9
LENGTHS = (1, MAX_LENGTH, 4, 2)
# One configuration for each preprocessor; between them every module and every branch of the port.
VARIANTS: dict[str, dict[str, object]] = {
    "positional": {"normalization": "rel_bias"},
    "rated": {
        "input_preprocessor": "rated",
        "rating_embedding_dim": 5,
        "normalization": "hstu_rel_bias",
        "relative_attention_bias": "positional",
        "output_postprocessor": "layer_norm",
        "linear_activation": "none",
        "concat_ua": True,
    },
    "combined": {
        "input_preprocessor": "combined",
        "normalization": "softmax_rel_bias",
        "embedding": "categorical",
        "num_categories": 7,
    },
}
DTYPES = (tp.float32, tp.float16, tp.bfloat16)
FLOAT32_ROUNDOFF, FLOAT16_ROUNDOFF = 2.0**-24, 2.0**-11


def small_config(variant: str = "positional", **changes: object) -> HSTUConfig:
    """Widths that differ from one another, so that a transposed or swapped size cannot fit."""
    fields: dict[str, object] = {
        "num_items": 40,
        "max_sequence_len": MAX_LENGTH,
        "max_output_len": 3,
        "item_embedding_dim": 12,
        "num_blocks": 2 if variant == "positional" else 1,
        "num_heads": 2,
        "attention_dim": 6,
        "linear_dim": 7,
        **VARIANTS[variant],
        **changes,
    }
    return HSTUConfig(**fields)


def tensor(array: np.ndarray, dtype: tp.dtype | None = None) -> tp.Tensor:
    """A constant in host memory, floating-point arrays cast to ``dtype``."""
    constant = tp.Tensor(np.ascontiguousarray(array))
    return tp.cast(constant, dtype) if dtype is not None and array.dtype == np.float32 else constant


def array(value: tp.Tensor) -> np.ndarray:
    """The values; half types, of which NumPy lacks one, as float32."""
    return np.array(tp.cast(value, tp.float32).tolist() if value.dtype in DTYPES[1:] else value.tolist())


def runtime_input(value: np.ndarray) -> tp.Tensor:
    """An argument of an executable, on the device."""
    return tp.copy(tp.Tensor(np.ascontiguousarray(value)), tp.device("gpu"))


def weights(model: HSTUDenseModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Large enough for every block to move its input by about the input's size; exact in float16."""
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    for name, parameter in sorted(model.state_dict().items()):
        shape = tuple(parameter.shape)
        if name == "_attn_mask":
            values[name] = np.triu(np.ones(shape, dtype=np.bool_), k=1)
        elif name.endswith("_item_id_to_category_id"):
            values[name] = rng.integers(0, 7, shape)
        else:
            scale = 1.0 if "rel_attn_bias" in name else 0.5
            values[name] = (rng.standard_normal(shape) * scale).astype(np.float16).astype(np.float32)
    return values


def make_model(config: HSTUConfig, dtype: tp.dtype = tp.float32) -> HSTUDenseModel:
    model = build_hstu(config, dtype)
    model.load_state_dict({name: tensor(value, dtype) for name, value in weights(model).items()})
    return model


@dataclass(frozen=True)
class Batch:
    """The arguments of `HSTUDenseModel.score`; ``timestamps`` is (B, N), one for each item."""

    lengths: np.ndarray
    ids: np.ndarray
    ratings: np.ndarray
    timestamps: np.ndarray
    candidates: np.ndarray
    config: HSTUConfig

    @property
    def payloads(self) -> dict[str, np.ndarray]:
        payloads = {"timestamps": np.repeat(self.timestamps, self.config.positions_per_item, axis=1)}
        if self.config.input_preprocessor != "positional":
            payloads["ratings"] = self.ratings
        return payloads

    @property
    def arguments(self) -> tuple:
        return self.lengths, self.ids, self.payloads, self.candidates

    def trimmed(self, batch_size: int, width: int) -> Batch:
        b, n = slice(batch_size), slice(width)
        smaller = replace(
            self,
            ids=self.ids[b, n],
            ratings=self.ratings[b, n],
            timestamps=self.timestamps[b, n],
            candidates=self.candidates[b],
        )
        # The query time takes a column behind the longest history.
        return smaller.with_lengths(np.minimum(self.lengths[b], width - 1))

    def with_lengths(self, lengths: np.ndarray) -> Batch:
        """The first ``lengths`` events of each row, with the next event's time as the query time."""
        position = np.arange(self.ids.shape[1])
        inside, with_query = position < lengths[:, None], position <= lengths[:, None]
        return replace(
            self,
            lengths=lengths,
            ids=self.ids * inside,
            ratings=self.ratings * inside,
            timestamps=self.timestamps * with_query,
        )


def make_full_batch(config: HSTUConfig, batch_size: int = len(LENGTHS), seed: int = 0) -> Batch:
    """Every position holds an event."""
    rng = np.random.default_rng(seed)
    shape = (batch_size, config.padded_length)
    # From a second to a year between events, uniform in the exponent: all kinds of buckets.
    gaps = (10 ** rng.uniform(0, 7.5, shape)).astype(np.int64)
    return Batch(
        lengths=np.full(batch_size, config.max_sequence_len),
        ids=rng.integers(1, config.num_items + 1, shape),
        ratings=rng.integers(0, config.num_ratings, shape),
        timestamps=gaps.cumsum(1) + 978_300_000,
        candidates=rng.integers(1, config.num_items + 1, (batch_size, 5)),
        config=config,
    )


def make_batch(config: HSTUConfig, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> Batch:
    return make_full_batch(config, len(lengths), seed).with_lengths(np.array(lengths))


def compile_for(function: Callable, arguments: Sequence, smallest: Sequence | None = None) -> tp.Executable:
    """Compile for these arguments' shapes, or for all from the ``smallest`` arguments' shapes up to these."""
    smallest = arguments if smallest is None else smallest
    infos = [map_tree(_info, *pair) for pair in zip(arguments, smallest, strict=True)]
    # Tripy records the Python stack with every operation, at a cost that grows with it: start a new, short
    # one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(tp.compile, function, args=infos).result()


def call(executable: tp.Executable, arguments: Sequence) -> tuple[np.ndarray, ...]:
    """The outputs of an executable for NumPy arguments."""
    outputs = executable(*(map_tree(runtime_input, argument) for argument in arguments))
    return tuple(array(output) for output in (outputs if isinstance(outputs, tuple) else (outputs,)))


def map_tree(function: Callable, value: object, *others: object) -> object:
    """Apply ``function`` to the leaves of equally nested dicts and lists."""
    if isinstance(value, dict):
        return {key: map_tree(function, item, *(o[key] for o in others)) for key, item in value.items()}
    if isinstance(value, list):
        return [map_tree(function, *items) for items in zip(value, *others, strict=True)]
    return function(value, *others)


def _info(largest: np.ndarray, smallest: np.ndarray) -> tp.InputInfo:
    sizes = zip(smallest.shape, largest.shape, strict=True)
    shape = [high if low == high else (low, high, high) for low, high in sizes]
    return tp.InputInfo(shape, tp.int64 if largest.dtype == np.int64 else tp.float32)


def longest_sum(config: HSTUConfig) -> int:
    """Terms of the longest sum in the model."""
    heads = config.num_heads
    projected = heads * config.linear_dim * (3 if config.concat_ua else 1)
    return max(config.sequence_width, config.embedding_dim, projected, heads * config.attention_dim)


def rounding_bound(config: HSTUConfig, in_float16: np.ndarray, in_float32: np.ndarray) -> float:
    """Largest difference that two float32 evaluations of the same function may show.

    Rounding errors grow, to first order, in proportion to the unit round-off, through the same amplification.
    What float16 loses against float32 on the very same weights and inputs is thus, times u32 / u16, what one
    rounding of each result costs a float32 evaluation; a sum of n terms rounds up to n times. Two
    evaluations: twice that. The second term stands in where float16 was exact.
    """
    measured = np.abs(in_float16 - in_float32).max() * FLOAT32_ROUNDOFF / FLOAT16_ROUNDOFF
    floor = FLOAT32_ROUNDOFF * np.abs(in_float32).max()
    return float(2 * longest_sum(config) * (measured + floor))


def max_difference(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    assert a.size > 0
    assert np.isfinite(a).all()
    return float(np.abs(a - b).max())
