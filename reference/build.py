"""Builds the reference models from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from reference.dlrm import DLRM_Net
from reference.dlrm_hstu import DlrmHSTU, RankingTransducer
from reference.dlrm_hstu_fused import DlrmHSTUFused, RankingTransducerFused
from reference.dlrm_layers import interaction_width
from reference.embedding_modules import (
    CategoricalEmbeddingModule,
    EmbeddingModule,
    LocalEmbeddingModule,
)
from reference.hstu import HSTU
from reference.hstu_dense import HSTUDenseModel
from reference.hstu_fused import HSTUFusedModel
from reference.hstu_stream import HSTUStreamModel
from reference.hstu_transducer import HSTUTransducer
from reference.input_features_preprocessors import (
    CombinedItemAndRatingInputFeaturesPreprocessor,
    InputFeaturesPreprocessorModule,
    LearnablePositionalEmbeddingInputFeaturesPreprocessor,
    LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor,
)
from reference.lecture_dlrm import DLRM, Parameters
from reference.md_embedding_bag import mixed_dimensions
from reference.multitask_module import MultitaskModule
from reference.output_postprocessors import (
    L2NormEmbeddingPostprocessor,
    LayerNormEmbeddingPostprocessor,
    OutputPostprocessorModule,
)
from reference.positional_encoder import HSTUPositionalEncoder
from reference.postprocessors import (
    L2NormPostprocessor,
    LayerNormPostprocessor,
    OutputPostprocessor,
    TimestampLayerNormPostprocessor,
)
from reference.preprocessors import ContextualPreprocessor
from reference.quantisers import schemes_inside
from reference.similarity import DotProductSimilarity
from reference.stu import STULayer, STUStack
from reference.stu_fused import HSTUTransducerFused, STULayerFused, STULayerWhole, STUStackFused
from reference.stu_jagged import STULayerJagged, STUStackJagged
from reference.validation import require_choice

if TYPE_CHECKING:
    from configs import DLRMConfig, DLRMv3Config, HSTUConfig, LectureDLRMConfig, STUConfig

LAYOUTS = ("dense", "jagged")

_Layer = TypeVar("_Layer", bound=STULayer)
_DLRMv3 = TypeVar("_DLRMv3", bound=DlrmHSTU)


def build_hstu(config: HSTUConfig, layout: str = "dense", jagged_backend: str = "auto") -> HSTUDenseModel:
    """Research HSTU in eval mode, float32, with the public code's initial values.

    Args:
        config: the sizes and choices.
        layout: "dense" gives `HSTUDenseModel`, "jagged" its subclass `HSTU`; state-dict keys are the same.
        jagged_backend: see `reference.jagged_ops`; jagged layout only.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    require_choice("layout", layout, LAYOUTS)
    if layout == "jagged":
        return HSTU(jagged_backend=jagged_backend, **_hstu_arguments(config)).eval()
    return HSTUDenseModel(**_hstu_arguments(config)).eval()


def build_hstu_stream(config: HSTUConfig) -> HSTUStreamModel:
    """`build_hstu` with the incremental forward over streams; state-dict keys are the same.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    return HSTUStreamModel(**_hstu_arguments(config)).eval()


def build_hstu_fused(config: HSTUConfig) -> HSTUFusedModel:
    """`build_hstu` on jagged rows with fused attention; state-dict keys are the same.

    Raises:
        ValueError: naming the field, its value and the fix; also for a choice that the kernel lacks.
    """
    return HSTUFusedModel(**_hstu_arguments(config)).eval()


def _hstu_arguments(config: HSTUConfig) -> dict[str, Any]:
    return {
        "max_sequence_len": config.max_sequence_len,
        "max_output_len": config.max_output_len,
        "embedding_dim": config.embedding_dim,
        "num_blocks": config.num_blocks,
        "num_heads": config.num_heads,
        "linear_dim": config.linear_dim,
        "attention_dim": config.attention_dim,
        "normalization": config.normalization,
        "linear_config": config.linear_config,
        "linear_activation": config.linear_activation,
        "linear_dropout_rate": config.linear_dropout_rate,
        "attn_dropout_rate": config.attn_dropout_rate,
        "embedding_module": _embedding_module(config),
        "similarity_module": DotProductSimilarity(),
        "input_features_preproc_module": _input_preprocessor(config),
        "output_postproc_module": _output_postprocessor(config),
        "relative_attention_bias": config.relative_attention_bias,
        "num_buckets": config.num_buckets,
        "bucket_divisor": config.bucket_divisor,
        "concat_ua": config.concat_ua,
        "epsilon": config.epsilon,
        "schemes": config.schemes,
    }


def _embedding_module(config: HSTUConfig) -> EmbeddingModule:
    require_choice("embedding", config.embedding, ("local", "categorical"))
    if config.embedding == "local":
        return LocalEmbeddingModule(config.num_items, config.item_embedding_dim)
    # The map is a buffer of the checkpoint; until one is loaded, items take the categories in turn.
    category_ids = torch.arange(config.num_items) % config.num_categories
    return CategoricalEmbeddingModule(config.num_items, config.item_embedding_dim, category_ids)


def _input_preprocessor(config: HSTUConfig) -> InputFeaturesPreprocessorModule:
    require_choice("input_preprocessor", config.input_preprocessor, ("positional", "rated", "combined"))
    # The public configurations drop inputs and projections at the same rate.
    dropout_rate = config.linear_dropout_rate
    if config.input_preprocessor == "positional":
        return LearnablePositionalEmbeddingInputFeaturesPreprocessor(
            config.padded_length, config.item_embedding_dim, dropout_rate
        )
    if config.input_preprocessor == "rated":
        return LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor(
            config.padded_length,
            config.item_embedding_dim,
            dropout_rate,
            config.rating_embedding_dim,
            config.num_ratings,
        )
    return CombinedItemAndRatingInputFeaturesPreprocessor(
        config.padded_length, config.item_embedding_dim, dropout_rate, config.num_ratings
    )


def _output_postprocessor(config: HSTUConfig) -> OutputPostprocessorModule:
    require_choice("output_postprocessor", config.output_postprocessor, ("l2_norm", "layer_norm"))
    if config.output_postprocessor == "l2_norm":
        return L2NormEmbeddingPostprocessor(config.item_embedding_dim, config.output_epsilon)
    return LayerNormEmbeddingPostprocessor(config.item_embedding_dim, config.output_epsilon)


def build_dlrm(config: DLRMConfig, validate_inputs: bool = True) -> DLRM_Net:
    """DLRM in eval mode, float32, with the public code's initial values.

    Args:
        config: the sizes and choices.
        validate_inputs: see `DLRM_Net`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    rows, width, bottom = config.table_rows, config.arch_sparse_feature_size, config.bottom_widths
    interaction = interaction_width(
        config.arch_interaction_op, len(rows) + 1, bottom[-1], config.arch_interaction_itself
    )
    return DLRM_Net(
        m_spa=mixed_dimensions(rows, config.md_temperature, width, config.md_round_dims)
        if config.md_flag
        else width,
        ln_emb=rows,
        ln_bot=bottom,
        ln_top=(interaction, *config.top_widths),
        arch_interaction_op=config.arch_interaction_op,
        arch_interaction_itself=config.arch_interaction_itself,
        sigmoid_bot=config.sigmoid_bot,
        sigmoid_top=config.top_sigmoid,
        loss_threshold=config.loss_threshold,
        qr_flag=config.qr_flag,
        qr_operation=config.qr_operation,
        qr_collisions=config.qr_collisions,
        qr_threshold=config.qr_threshold,
        md_flag=config.md_flag,
        md_threshold=config.md_threshold,
        weighted_pooling=config.weighted_pooling,
        validate_inputs=validate_inputs,
        schemes=config.schemes,
    ).eval()


def build_lecture_dlrm(config: LectureDLRMConfig) -> DLRM:
    """The lecture's DLRM in eval mode, float32, with PyTorch's initial values.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    names = list(config.metadata)
    parameters = Parameters(
        dense_input_feature_size=config.dense_input_feature_size,
        sparse_embedding_sizes=dict.fromkeys(names, config.sparse_embedding_size),
        dense_mlp={
            "hidden_layer_sizes": config.dense_hidden_sizes,
            "output_size": config.dense_output_size,
        },
        prediction_hidden_sizes=config.prediction_hidden_sizes,
        use_modulus_hash=config.token_hash == "modulus",
    )
    return DLRM(config.metadata, parameters).eval()


def build_stu(config: STUConfig, layout: str = "dense", jagged_backend: str = "auto") -> HSTUTransducer:
    """The production STU model in eval mode, float32, with the public code's initial values.

    Args:
        config: the sizes and choices.
        layout: "dense" or "jagged", inside the stack; state-dict keys are the same.
        jagged_backend: see `reference.jagged_ops`; jagged layout only.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    require_choice("layout", layout, LAYOUTS)
    mask = (config.mask_contextual_seq_len, config.max_attn_len)
    if layout == "jagged":
        stack = STUStackJagged(_stu_layers(config, STULayerJagged), *mask, jagged_backend)
    else:
        stack = STUStack(_stu_layers(config, STULayer), *mask)
    return HSTUTransducer(stu_module=stack, **_stu_arguments(config)).eval()


def build_stu_fused(config: STUConfig, whole_layers: bool = False) -> HSTUTransducerFused:
    """`build_stu` on jagged rows with fused attention; state-dict keys are the same.

    Args:
        config: the sizes and choices.
        whole_layers: build `STULayerWhole`, with kernels for norms, activation and gate too; no training.

    Raises:
        ValueError: naming the field, its value and the fix; also for a choice that the kernel lacks.
    """
    layers = _stu_layers(config, STULayerWhole if whole_layers else STULayerFused)
    stack = STUStackFused(layers, config.mask_contextual_seq_len, config.max_attn_len)
    return HSTUTransducerFused(stu_module=stack, **_stu_arguments(config)).eval()


def _stu_layers(config: STUConfig, layer_class: type[_Layer]) -> list[_Layer]:
    def options(layer: int) -> dict[str, Any]:
        return {
            "output_dropout_ratio": config.output_dropout_ratio,
            "attn_alpha": config.attn_alpha,
            "schemes": schemes_inside(f"_stu_module._stu_layers.{layer}", config.schemes),
        }

    return _layers(config, layer_class, options)


def _layers(
    config: STUConfig | DLRMv3Config,
    layer_class: type[_Layer],
    options: Callable[[int], dict[str, Any]] = lambda layer: {},
) -> list[_Layer]:
    return [
        layer_class(
            embedding_dim=config.embedding_dim,
            num_heads=config.num_heads,
            hidden_dim=config.hidden_dim,
            attention_dim=config.attention_dim,
            use_group_norm=config.use_group_norm,
            **options(layer),
        )
        for layer in range(config.num_layers)
    ]


def _stu_arguments(config: STUConfig) -> dict[str, Any]:
    """Arguments of the model around the stack."""
    return {
        "embedding_module": LocalEmbeddingModule(config.num_items, config.embedding_dim),
        "positional_encoder": HSTUPositionalEncoder(
            config.num_position_buckets,
            config.num_time_buckets,
            config.embedding_dim,
            config.contextual_seq_len,
        ),
        "output_postprocessor": _stu_postprocessor(config),
        "max_num_targets": config.max_num_targets,
    }


def _stu_postprocessor(config: STUConfig | DLRMv3Config) -> OutputPostprocessor:
    choices = ("l2_norm", "layer_norm", "timestamp_layer_norm")
    require_choice("output_postprocessor", config.output_postprocessor, choices)
    if config.output_postprocessor == "l2_norm":
        return L2NormPostprocessor()
    if config.output_postprocessor == "layer_norm":
        return LayerNormPostprocessor(config.embedding_dim)
    return TimestampLayerNormPostprocessor(config.embedding_dim)


def build_dlrmv3(config: DLRMv3Config, layout: str = "dense", jagged_backend: str = "auto") -> DlrmHSTU:
    """DLRMv3 behind its embedding tables in eval mode, float32, with the public code's initial values.

    Args:
        config: the sizes and choices.
        layout, jagged_backend: see `build_stu`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    require_choice("layout", layout, LAYOUTS)
    # The public model's layers take contextual rows for history.
    if layout == "jagged":
        stack = STUStackJagged(_layers(config, STULayerJagged), jagged_backend=jagged_backend)
    else:
        stack = STUStack(_layers(config, STULayer))
    return _dlrmv3(DlrmHSTU, RankingTransducer, stack, config)


def build_dlrmv3_fused(config: DLRMv3Config, whole_layers: bool = False) -> DlrmHSTUFused:
    """`build_dlrmv3` on jagged rows with fused attention; arguments and errors as of `build_stu_fused`."""
    stack = STUStackFused(_layers(config, STULayerWhole if whole_layers else STULayerFused))
    return _dlrmv3(DlrmHSTUFused, RankingTransducerFused, stack, config)


def _dlrmv3(
    model_class: type[_DLRMv3], transducer_class: type[RankingTransducer], stack: Any, config: DLRMv3Config
) -> _DLRMv3:
    d = config.embedding_dim
    transducer = transducer_class(
        stu_module=stack,
        input_preprocessor=ContextualPreprocessor(
            config.embedding_table_dim,
            config.preprocessor_hidden_dim,
            d,
            config.contextual_max_lengths,
            config.contextual_min_seq_lengths,
            config.action_weights,
        ),
        output_postprocessor=_stu_postprocessor(config),
        positional_encoder=HSTUPositionalEncoder(
            config.num_position_buckets, config.num_time_buckets, d, config.contextual_seq_len
        ),
        max_num_targets=config.max_num_candidates,
    )
    multitask = MultitaskModule(
        config.num_classification_tasks, config.num_regression_tasks, d, config.prediction_hidden_dim
    )
    return model_class(transducer, multitask, config.embedding_table_dim, config.item_hidden_dim, d).eval()
