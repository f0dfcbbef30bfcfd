"""DLRMv3 of MLPerf's inference benchmark, without its tables, beside the reference of this project."""

import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch
from checkout import public_module

from cases.configured import ConfiguredCase
from cases.shipped import from_values
from configs import DLRMv3Config
from parity.inputs.weights import initial_weights
from reference.build import build_dlrmv3

SOURCE = "https://github.com/mlcommons/inference"
CONTEXT, ITEM, CATEGORY = "user_id", "item_id", "item_category_id"
CANDIDATE, CANDIDATE_CATEGORY = "item_candidate_id", "item_candidate_category_id"

# The public code imports these names for the tables alone, which stay outside.
for name, members in {
    "torchrec": ("KeyedJaggedTensor",),
    "torchrec.modules": (),
    "torchrec.modules.embedding_configs": ("EmbeddingConfig",),
    "torchrec.modules.embedding_modules": ("EmbeddingCollection",),
}.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(dict.fromkeys(members, object))


def case(context: int, batch_size: int) -> ConfiguredCase:
    """A small case with the public code's fixed widths."""
    model = {
        "embedding_table_dim": 24,
        "preprocessor_hidden_dim": 40,
        "item_hidden_dim": 512,
        "prediction_hidden_dim": 512,
        "embedding_dim": 64,
        "contextual_max_lengths": [context],
        "contextual_min_seq_lengths": [20],
        "action_weights": [1, 2, 4, 8, 16],
        "max_uih_len": 50,
        "max_num_candidates": 21,
        "num_layers": 3,
        "num_heads": 2,
        "attention_dim": 18,
        "hidden_dim": 27,
        "num_position_buckets": 8192,
        "num_time_buckets": 2048,
        "num_classification_tasks": 2,
        "num_regression_tasks": 1,
    }
    return from_values(
        name="beside_the_public_code",
        description="DLRMv3 in small",
        family="dlrmv3",
        model=model,
        input={"batch_size": batch_size, "table_rows": 30},
    )


def build_public(module: ModuleType, config: DLRMv3Config) -> torch.nn.Module:
    tasks = sys.modules["generative_recommenders.modules.multitask_module"]
    kinds = tasks.MultitaskTaskType
    settings = module.DlrmHSTUConfig(
        hstu_num_heads=config.num_heads,
        hstu_attn_linear_dim=config.hidden_dim,
        hstu_attn_qk_dim=config.attention_dim,
        hstu_attn_num_layers=config.num_layers,
        hstu_embedding_table_dim=config.embedding_table_dim,
        hstu_preprocessor_hidden_dim=config.preprocessor_hidden_dim,
        hstu_transducer_embedding_dim=config.embedding_dim,
        contextual_feature_to_max_length={CONTEXT: config.contextual_seq_len},
        contextual_feature_to_min_uih_length={CONTEXT: config.contextual_min_seq_lengths[0]},
        user_embedding_feature_names=[ITEM, CONTEXT, CATEGORY],
        item_embedding_feature_names=[CANDIDATE, CANDIDATE_CATEGORY],
        uih_post_id_feature_name=ITEM,
        uih_action_time_feature_name="time",
        uih_weight_feature_name="weights",
        candidates_querytime_feature_name="query",
        candidates_weight_feature_name="labels",
        candidates_watchtime_feature_name="watch",
        merge_uih_candidate_feature_mapping=[(ITEM, CANDIDATE), (CATEGORY, CANDIDATE_CATEGORY)],
        action_weights=list(config.action_weights),
        multitask_configs=[
            tasks.TaskConfig("a", 1, kinds.BINARY_CLASSIFICATION),
            tasks.TaskConfig("b", 2, kinds.BINARY_CLASSIFICATION),
            tasks.TaskConfig("c", 0, kinds.REGRESSION),
        ],
    )
    model = module.DlrmHSTU(settings, {}, is_inference=True, is_dense=True).eval()
    model.set_hammer_kernel(module.HammerKernel.PYTORCH)
    return model


def run_public(module: ModuleType, model: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> torch.Tensor:
    """(L, K): the predictions of all candidates, one user after the other."""
    history, candidates = (torch.tensor(arrays[name]) for name in ("uih_lengths", "num_candidates"))

    def rows(name: str, lengths: torch.Tensor) -> torch.Tensor:
        values = torch.tensor(arrays[name])
        return values[torch.arange(values.shape[1]) < lengths[:, None]]

    def offsets(lengths: torch.Tensor) -> torch.Tensor:
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    context = torch.tensor(arrays["contextual_embeddings"])
    of_context = torch.full_like(history, context.shape[1])
    embeddings = {
        ITEM: (history, rows("uih_embeddings", history)),
        CATEGORY: (history, rows("uih_category_embeddings", history)),
        CANDIDATE: (candidates, rows("candidate_embeddings", candidates)),
        CANDIDATE_CATEGORY: (candidates, rows("candidate_category_embeddings", candidates)),
        CONTEXT: (of_context, context.flatten(0, 1)),
    }
    no_labels = torch.zeros(int(candidates.sum()), dtype=torch.int64)
    payload = {
        "time": rows("uih_timestamps", history),
        "query": rows("query_times", candidates),
        "weights": rows("uih_actions", history),
        "labels": no_labels,
        "watch": no_labels,
        "uih_offsets": offsets(history),
        "candidate_offsets": offsets(candidates),
    }
    with torch.inference_mode():
        *_, predictions, _, _ = model.main_forward(
            seq_embeddings={name: module.SequenceEmbedding(*pair) for name, pair in embeddings.items()},
            payload_features=payload,
            max_uih_len=arrays["uih_timestamps"].shape[1],
            uih_seq_lengths=history,
            max_num_candidates=arrays["query_times"].shape[1],
            num_candidates=candidates,
        )
    return predictions.T


def difference(
    module: ModuleType, public: torch.nn.Module, reference: torch.nn.Module, arrays: Mapping[str, np.ndarray]
) -> tuple[int, float]:
    """The number of candidates, and the relative difference of both sides' predictions."""
    ours = {name: torch.tensor(array) for name, array in arrays.items()}
    with torch.inference_mode():
        padded = reference(**ours)
    valid = torch.arange(padded.shape[1]) < ours["num_candidates"][:, None]
    theirs = run_public(module, public, arrays)
    return len(theirs), float((padded[valid] - theirs).norm() / theirs.norm())


def main(module: ModuleType) -> None:
    for context, batch_size in ((1, 9), (3, 200)):
        own = case(context, batch_size)
        arrays = dict(own.make_inputs().inputs[0].arrays)
        # PyTorch's operator ends time buckets at the width of the table. Contextual rows have time 0.
        last = 60 * (own.model.embedding_dim - 2) ** 2
        rng = np.random.default_rng(context)
        below = {
            "query_times": np.where(arrays["query_times"] > 0, last, 0),
            "uih_timestamps": rng.integers(0, last, arrays["uih_timestamps"].shape),
        }
        reference, public = build_dlrmv3(own.model), build_public(module, own.model)
        weights = initial_weights(reference, 0, own.weight_scale)
        reference.load_state_dict(weights)
        # The periods of the time features are buffers there and settings here.
        periods = {name: buffer for name, buffer in public.named_buffers() if "period" in name}
        public.load_state_dict(weights | periods)
        count, error = difference(module, public, reference, arrays | below)
        print(f"{len(weights)} tensors, {batch_size} users, {context} contextual rows: {count} candidates")
        print(f"relative difference {error:.1e}, {'within' if error < 1e-6 else 'ABOVE'} 1e-6")
        _, error = difference(module, public, reference, arrays)
        print(f"on times beyond the width of the table: relative difference {error:.2g}")


if __name__ == "__main__":
    torch.manual_seed(0)
    public_module("fbgemm_gpu", SOURCE, "recommendation/dlrm_v3", "fbgemm_gpu", "triton")
    main(public_module("generative_recommenders.modules.dlrm_hstu", SOURCE, "recommendation/dlrm_v3"))
