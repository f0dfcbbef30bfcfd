"""Builds the ported models from their configurations. Counterpart of reference/build.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import nvtripy as tp

from tripy_port.dlrm import DLRM_Net
from tripy_port.dlrm_hstu import DlrmHSTU, RankingTransducer
from tripy_port.dlrm_hstu_fused import DlrmHSTUFused, RankingTransducerFused
from tripy_port.dlrm_layers import interaction_width
from tripy_port.embedding_modules import (
    CategoricalEmbeddingModule,
    EmbeddingModule,
    LocalEmbeddingModule,
)
from tripy_port.hstu_dense import HSTUDenseModel
from tripy_port.hstu_fused import HSTUFusedModel
from tripy_port.hstu_stream import HSTUStreamModel
from tripy_port.hstu_transducer import HSTUTransducer
from tripy_port.input_features_preprocessors import (
    CombinedItemAndRatingInputFeaturesPreprocessor,
    InputFeaturesPreprocessorModule,
    LearnablePositionalEmbeddingInputFeaturesPreprocessor,
    LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor,
)
from tripy_port.lecture_dlrm import DLRM, Parameters
from tripy_port.md_embedding_bag import mixed_dimensions
from tripy_port.multitask_module import MultitaskModule
from tripy_port.output_postprocessors import (
    L2NormEmbeddingPostprocessor,
    LayerNormEmbeddingPostprocessor,
    OutputPostprocessorModule,
)
from tripy_port.positional_encoder import HSTUPositionalEncoder
from tripy_port.postprocessors import (
    L2NormPostprocessor,
    LayerNormPostprocessor,
    OutputPostprocessor,
    TimestampLayerNormPostprocessor,
)
from tripy_port.preprocessors import ContextualPreprocessor
from tripy_port.quantisers import schemes_inside
from tripy_port.similarity import DotProductSimilarity
from tripy_port.stu import STULayer, STUStack
from tripy_port.stu_fused import HSTUTransducerFused, STULayerFused, STULayerWhole, STUStackFused
from tripy_port.validation import require, require_choice

if TYPE_CHECKING:
    from configs import DLRMConfig, DLRMv3Config, HSTUConfig, LectureDLRMConfig, STUConfig

DTYPES = (tp.float32, tp.float16, tp.bfloat16)

_Layer = TypeVar("_Layer", bound=STULayer)
_DLRMv3 = TypeVar("_DLRMv3", bound=DlrmHSTU)


def build_hstu(config: HSTUConfig, dtype: tp.dtype = tp.float32) -> HSTUDenseModel:
    """Research HSTU without values: give it a state dict before calling it.

    Args:
        config: the sizes and choices.
        dtype: of all floating-point weights and of the computation, one of `DTYPES`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    return HSTUDenseModel(**_hstu_arguments(config, dtype))


def build_hstu_stream(config: HSTUConfig, dtype: tp.dtype = tp.float32) -> HSTUStreamModel:
    """`build_hstu` with the incremental forward over streams; state-dict keys are the same.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    return HSTUStreamModel(**_hstu_arguments(config, dtype))


def build_hstu_fused(config: HSTUConfig, dtype: tp.dtype = tp.float32) -> HSTUFusedModel:
    """`build_hstu` on jagged rows with fused attention; state-dict keys are the same.

    Raises:
        ValueError: naming the field, its value and the fix; also for a choice that the kernel lacks.
    """
    return HSTUFusedModel(**_hstu_arguments(config, dtype))


def _hstu_arguments(config: HSTUConfig, dtype: tp.dtype) -> dict[str, Any]:
    require(dtype in DTYPES, "dtype", dtype, f"choose one of {', '.join(str(choice) for choice in DTYPES)}")
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
        "embedding_module": _embedding_module(config, dtype),
        "similarity_module": DotProductSimilarity(),
        "input_features_preproc_module": _input_preprocessor(config, dtype),
        "output_postproc_module": _output_postprocessor(config),
        "relative_attention_bias": config.relative_attention_bias,
        "num_buckets": config.num_buckets,
        "bucket_divisor": config.bucket_divisor,
        "concat_ua": config.concat_ua,
        "epsilon": config.epsilon,
        "schemes": config.schemes,
        "dtype": dtype,
    }


def _embedding_module(config: HSTUConfig, dtype: tp.dtype) -> EmbeddingModule:
    require_choice("embedding", config.embedding, ("local", "categorical"))
    if config.embedding == "local":
        return LocalEmbeddingModule(config.num_items, config.item_embedding_dim, dtype=dtype)
    # The map is a buffer of the checkpoint; until one is loaded, items take the categories in turn.
    category_ids = tp.Tensor([item % config.num_categories for item in range(config.num_items)])
    return CategoricalEmbeddingModule(
        config.num_items, config.item_embedding_dim, tp.cast(category_ids, tp.int64), dtype=dtype
    )


def _input_preprocessor(config: HSTUConfig, dtype: tp.dtype) -> InputFeaturesPreprocessorModule:
    require_choice("input_preprocessor", config.input_preprocessor, ("positional", "rated", "combined"))
    # The public configurations drop inputs and projections at the same rate.
    dropout_rate = config.linear_dropout_rate
    if config.input_preprocessor == "positional":
        return LearnablePositionalEmbeddingInputFeaturesPreprocessor(
            config.padded_length, config.item_embedding_dim, dropout_rate, dtype=dtype
        )
    if config.input_preprocessor == "rated":
        return LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor(
            config.padded_length,
            config.item_embedding_dim,
            dropout_rate,
            config.rating_embedding_dim,
            config.num_ratings,
            dtype=dtype,
        )
    return CombinedItemAndRatingInputFeaturesPreprocessor(
        config.padded_length, config.item_embedding_dim, dropout_rate, config.num_ratings, dtype=dtype
    )


def _output_postprocessor(config: HSTUConfig) -> OutputPostprocessorModule:
    require_choice("output_postprocessor", config.output_postprocessor, ("l2_norm", "layer_norm"))
    if config.output_postprocessor == "l2_norm":
        return L2NormEmbeddingPostprocessor(config.item_embedding_dim, config.output_epsilon)
    return LayerNormEmbeddingPostprocessor(config.item_embedding_dim, config.output_epsilon)


def build_dlrm(config: DLRMConfig, dtype: tp.dtype = tp.float32) -> DLRM_Net:
    """DLRM without values: give it a state dict before calling it.

    Args:
        config: the sizes and choices.
        dtype: of all floating-point weights and of the computation, one of `DTYPES`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    require(dtype in DTYPES, "dtype", dtype, f"choose one of {', '.join(str(choice) for choice in DTYPES)}")
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
        max_bag_size=config.max_bag_size,
        schemes=config.schemes,
        dtype=dtype,
    )


def build_lecture_dlrm(config: LectureDLRMConfig, dtype: tp.dtype = tp.float32) -> DLRM:
    """The lecture's DLRM without values: give it a state dict before calling it.

    Args:
        config: the sizes and choices.
        dtype: of all floating-point weights and of the computation, one of `DTYPES`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    require(dtype in DTYPES, "dtype", dtype, f"choose one of {', '.join(str(choice) for choice in DTYPES)}")
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
    return DLRM(config.metadata, parameters, dtype)


def build_stu(config: STUConfig, dtype: tp.dtype = tp.float32) -> HSTUTransducer:
    """The production STU model without values: give it a state dict before calling it.

    Args:
        config: the sizes and choices.
        dtype: of all floating-point weights and of the computation, one of `DTYPES`.

    Raises:
        ValueError: naming the field, its value and the fix.
    """
    stack = STUStack(
        _stu_layers(config, STULayer, dtype), config.mask_contextual_seq_len, config.max_attn_len
    )
    return HSTUTransducer(stu_module=stack, **_stu_arguments(config, dtype))


def build_stu_fused(
    config: STUConfig, whole_layers: bool = False, dtype: tp.dtype = tp.float32
) -> HSTUTransducerFused:
    """`build_stu` on jagged rows with fused attention; state-dict keys are the same.

    Args:
        config: the sizes and choices.
        whole_layers: build `STULayerWhole`, with kernels for norms, activation and gate too.
        dtype: see `build_stu`.

    Raises:
        ValueError: naming the field, its value and the fix; also for a choice that the kernel lacks.
    """
    layers = _stu_layers(config, STULayerWhole if whole_layers else STULayerFused, dtype)
    stack = STUStackFused(layers, config.mask_contextual_seq_len, config.max_attn_len)
    return HSTUTransducerFused(stu_module=stack, **_stu_arguments(config, dtype))


def _stu_layers(config: STUConfig, layer_class: type[_Layer], dtype: tp.dtype) -> list[_Layer]:
    def options(layer: int) -> dict[str, Any]:
        return {
            "output_dropout_ratio": config.output_dropout_ratio,
            "attn_alpha": config.attn_alpha,
            "schemes": schemes_inside(f"_stu_module._stu_layers.{layer}", config.schemes),
        }

    return _layers(config, layer_class, dtype, options)


def _layers(
    config: STUConfig | DLRMv3Config,
    layer_class: type[_Layer],
    dtype: tp.dtype,
    options: Callable[[int], dict[str, Any]] = lambda layer: {},
) -> list[_Layer]:
    require(dtype in DTYPES, "dtype", dtype, f"choose one of {', '.join(str(choice) for choice in DTYPES)}")
    return [
        layer_class(
            embedding_dim=config.embedding_dim,
            num_heads=config.num_heads,
            hidden_dim=config.hidden_dim,
            attention_dim=config.attention_dim,
            use_group_norm=config.use_group_norm,
            dtype=dtype,
            **options(layer),
        )
        for layer in range(config.num_layers)
    ]


def _stu_arguments(config: STUConfig, dtype: tp.dtype) -> dict[str, Any]:
    """Arguments of the model around the stack."""
    return {
        "embedding_module": LocalEmbeddingModule(config.num_items, config.embedding_dim, dtype=dtype),
        "positional_encoder": HSTUPositionalEncoder(
            config.num_position_buckets,
            config.num_time_buckets,
            config.embedding_dim,
            config.contextual_seq_len,
            dtype=dtype,
        ),
        "output_postprocessor": _stu_postprocessor(config, dtype),
        "max_num_targets": config.max_num_targets,
    }


def _stu_postprocessor(config: STUConfig | DLRMv3Config, dtype: tp.dtype) -> OutputPostprocessor:
    choices = ("l2_norm", "layer_norm", "timestamp_layer_norm")
    require_choice("output_postprocessor", config.output_postprocessor, choices)
    if config.output_postprocessor == "l2_norm":
        return L2NormPostprocessor()
    if config.output_postprocessor == "layer_norm":
        return LayerNormPostprocessor(config.embedding_dim, dtype=dtype)
    return TimestampLayerNormPostprocessor(config.embedding_dim, dtype=dtype)


def build_dlrmv3(config: DLRMv3Config, dtype: tp.dtype = tp.float32) -> DlrmHSTU:
    """DLRMv3 behind its embedding tables, without values; arguments and errors as of `build_stu`."""
    # The public model's layers take contextual rows for history.
    return _dlrmv3(DlrmHSTU, RankingTransducer, STUStack(_layers(config, STULayer, dtype)), config, dtype)


def build_dlrmv3_fused(
    config: DLRMv3Config, whole_layers: bool = False, dtype: tp.dtype = tp.float32
) -> DlrmHSTUFused:
    """`build_dlrmv3` on jagged rows with fused attention; arguments and errors as of `build_stu_fused`."""
    stack = STUStackFused(_layers(config, STULayerWhole if whole_layers else STULayerFused, dtype))
    return _dlrmv3(DlrmHSTUFused, RankingTransducerFused, stack, config, dtype)


def _dlrmv3(
    model_class: type[_DLRMv3],
    transducer_class: type[RankingTransducer],
    stack: Any,
    config: DLRMv3Config,
    dtype: tp.dtype,
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
            dtype=dtype,
        ),
        output_postprocessor=_stu_postprocessor(config, dtype),
        positional_encoder=HSTUPositionalEncoder(
            config.num_position_buckets, config.num_time_buckets, d, config.contextual_seq_len, dtype=dtype
        ),
        max_num_targets=config.max_num_candidates,
    )
    tasks = (config.num_classification_tasks, config.num_regression_tasks)
    multitask = MultitaskModule(*tasks, d, config.prediction_hidden_dim, dtype=dtype)
    widths = (config.embedding_table_dim, config.item_hidden_dim, d)
    return model_class(transducer, multitask, *widths, dtype=dtype)
