"""Meta's own DLRMv3 without its tables, on Triton: the peer of `dlrmv3.py`.

The public model imports torchrec for its tables and for an operator that it never calls, and takes two
operators of fbgemm. `stand_in` registers plain PyTorch in their place. Both act on a few numbers and a row a
user.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

import torch

from benchmarks.gpu.stu_layers import autotuners
from configs import DLRMv3Config
from reference.jagged_ops import complete_cumsum, jagged_to_padded_dense

FORMS = ("no descriptors", "contiguous copies", "default")
"""Two correct forms of the attention on Hopper, and the default, which is wrong there (issue 583)."""
_CONTEXT, _ITEM, _CATEGORY = "user_id", "item_id", "item_category_id"
_CANDIDATE, _CANDIDATE_CATEGORY = "item_candidate_id", "item_candidate_category_id"
_OUTSIDE = {
    "torchrec": ("KeyedJaggedTensor",),
    "torchrec.modules": (),
    "torchrec.modules.embedding_configs": ("EmbeddingConfig",),
    "torchrec.modules.embedding_modules": ("EmbeddingCollection",),
    "torchrec.modules.sorted_index_select": ("maybe_sorted_index_select",),
}
_BUFFERS = ("_period_units", "_units_per_period")
"""Buffers of the public model that are settings of the reference."""


def stand_in() -> torch.library.Library:
    """Register what the public model takes from packages that are not here. The result keeps it alive."""
    for name, members in _OUTSIDE.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(members, object))
    library = torch.library.Library("fbgemm", "FRAGMENT")
    library.define("asynchronous_complete_cumsum(Tensor lengths) -> Tensor")
    library.impl(
        "asynchronous_complete_cumsum",
        lambda lengths: complete_cumsum(lengths, "plain"),
        "CompositeExplicitAutograd",
    )
    library.define(
        "jagged_to_padded_dense(Tensor values, Tensor[] offsets, SymInt[] max_lengths, "
        "float padding_value=0.0) -> Tensor"
    )
    library.impl(
        "jagged_to_padded_dense",
        lambda values, offsets, max_lengths, padding_value=0.0: jagged_to_padded_dense(
            values, offsets[0], max_lengths[0], padding_value, "plain"
        ),
        "CompositeExplicitAutograd",
    )
    return library


def build(checkout: str, config: DLRMv3Config, weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """The public model with the reference's weights, in bfloat16 on the GPU.

    Raises:
        ValueError: its parameters are not those of the reference.
    """
    sys.path.insert(0, checkout)
    module = importlib.import_module("generative_recommenders.modules.dlrm_hstu")
    tasks = importlib.import_module("generative_recommenders.modules.multitask_module")
    settings = module.DlrmHSTUConfig(
        max_seq_len=config.max_uih_len,
        hstu_num_heads=config.num_heads,
        hstu_attn_linear_dim=config.hidden_dim,
        hstu_attn_qk_dim=config.attention_dim,
        hstu_attn_num_layers=config.num_layers,
        hstu_embedding_table_dim=config.embedding_table_dim,
        hstu_preprocessor_hidden_dim=config.preprocessor_hidden_dim,
        hstu_transducer_embedding_dim=config.embedding_dim,
        contextual_feature_to_max_length={_CONTEXT: config.contextual_seq_len},
        contextual_feature_to_min_uih_length={_CONTEXT: config.contextual_min_seq_lengths[0]},
        user_embedding_feature_names=[_ITEM, _CONTEXT, _CATEGORY],
        item_embedding_feature_names=[_CANDIDATE, _CANDIDATE_CATEGORY],
        uih_post_id_feature_name=_ITEM,
        uih_action_time_feature_name="time",
        uih_weight_feature_name="weights",
        candidates_querytime_feature_name="query",
        candidates_weight_feature_name="labels",
        candidates_watchtime_feature_name="watch",
        merge_uih_candidate_feature_mapping=[(_ITEM, _CANDIDATE), (_CATEGORY, _CANDIDATE_CATEGORY)],
        action_weights=list(config.action_weights or ()),
        multitask_configs=[tasks.TaskConfig("rating", 8, tasks.MultitaskTaskType.BINARY_CLASSIFICATION)],
    )
    model = module.DlrmHSTU(settings, {}, is_inference=True, is_dense=True).eval()
    missing, unexpected = model.load_state_dict(dict(weights), strict=False)
    if unexpected or not all(name.split(".")[-1] in _BUFFERS for name in missing):
        raise ValueError(f"the public model lacks {unexpected} and has {missing} besides")
    model.set_hammer_kernel(module.HammerKernel.TRITON)
    return model.to("cuda", torch.bfloat16).requires_grad_(False)


def side(
    model: torch.nn.Module, arguments: Mapping[str, torch.Tensor], form: str
) -> Callable[[], torch.Tensor]:
    """A call of the public model in one of `FORMS` on padded arguments; (L, K), one user after the other."""
    module = sys.modules[type(model).__module__]
    layers = importlib.import_module("generative_recommenders.modules.stu")
    inner = importlib.import_module("generative_recommenders.ops.triton.triton_hstu_preprocess_and_attention")
    projected = _published(layers, "hstu_preprocess_and_attention")
    attention = _published(inner, "triton_hstu_attention_fwd")

    def without_descriptors(**options: object) -> object:
        return projected(**options, enable_tma=False)

    def copying(**options: object) -> object:
        contiguous = {name: options[name].contiguous() for name in ("q", "k", "v")}
        return attention(**options | contiguous)

    chosen = {
        "no descriptors": (without_descriptors, attention),
        "contiguous copies": (projected, copying),
        "default": (projected, attention),
    }[form]
    embeddings, payload, lengths = _inputs(arguments)
    # The autotuners' keys leave out the descriptors: each form keeps its own choices.
    choices = [(tuner, {}) for tuner in autotuners()]

    def run() -> torch.Tensor:
        layers.hstu_preprocess_and_attention, inner.triton_hstu_attention_fwd = chosen
        for tuner, choice in choices:
            tuner.cache = choice
        *_, predictions, _, _ = model.main_forward(
            seq_embeddings={name: module.SequenceEmbedding(*pair) for name, pair in embeddings.items()},
            payload_features=payload,
            **lengths,
        )
        return predictions.T

    return run


def _published(module: ModuleType, name: str) -> Callable[..., object]:
    """A function of the public code, whatever an earlier side has put in its place."""
    key = f"published_{name}"
    vars(module).setdefault(key, getattr(module, name))
    return vars(module)[key]


def _inputs(arguments: Mapping[str, torch.Tensor]) -> tuple[dict, dict, dict]:
    """Embeddings, payload and lengths of the public `main_forward`."""
    history, candidates = arguments["uih_lengths"], arguments["num_candidates"]

    def rows(name: str, lengths: torch.Tensor) -> torch.Tensor:
        values = arguments[name]
        return values[torch.arange(values.shape[1], device=values.device) < lengths[:, None]]

    context = arguments["contextual_embeddings"]
    embeddings = {
        _ITEM: (history, rows("uih_embeddings", history)),
        _CATEGORY: (history, rows("uih_category_embeddings", history)),
        _CANDIDATE: (candidates, rows("candidate_embeddings", candidates)),
        _CANDIDATE_CATEGORY: (candidates, rows("candidate_category_embeddings", candidates)),
        _CONTEXT: (torch.full_like(history, context.shape[1]), context.flatten(0, 1)),
    }
    query = rows("query_times", candidates)
    payload = {
        "time": rows("uih_timestamps", history),
        "query": query,
        "weights": rows("uih_actions", history),
        "labels": torch.zeros_like(query),
        "watch": torch.zeros_like(query),
        "uih_offsets": complete_cumsum(history, "plain"),
        "candidate_offsets": complete_cumsum(candidates, "plain"),
    }
    lengths = {
        "max_uih_len": arguments["uih_timestamps"].shape[1],
        "uih_seq_lengths": history,
        "max_num_candidates": arguments["query_times"].shape[1],
        "num_candidates": candidates,
    }
    return embeddings, payload, lengths
