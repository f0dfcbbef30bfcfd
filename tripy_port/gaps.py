"""The names of `reference` without a counterpart in `tripy_port`, each with the reason.

A key is a file of the reference without its suffix, or a class, function, method or parameter in it. A key
covers all its members. `tests/test_layout.py` checks that exactly the listed names lack a counterpart.
"""

from __future__ import annotations

_NO_RAGGED_TENSORS = "Tripy has no ragged tensors; the dense layout computes the same function"
_NO_TRAINING = "Tripy runs inference: every value comes from a shared state dict, none is drawn"
_NO_GRADIENTS = "Tripy runs inference: there are no gradients, sparse or dense"
_PRINTING = "it prints PyTorch modules"
_TRACED = "tracing sees no values: the caller runs check_inputs on the arguments first"

GAPS: dict[str, str] = {
    "hstu": _NO_RAGGED_TENSORS,
    "jagged_ops": _NO_RAGGED_TENSORS,
    "stu_jagged": _NO_RAGGED_TENSORS,
    "build.build_stu.layout": _NO_RAGGED_TENSORS,
    "build.build_dlrmv3.layout": _NO_RAGGED_TENSORS,
    "build.build_dlrmv3.jagged_backend": _NO_RAGGED_TENSORS,
    "build.build_stu.jagged_backend": _NO_RAGGED_TENSORS,
    "build.build_hstu.layout": _NO_RAGGED_TENSORS,
    "build.build_hstu.jagged_backend": _NO_RAGGED_TENSORS,
    "sequence_utils.jagged_or_dense_repeat_interleave_dim0": _NO_RAGGED_TENSORS,
    "sequence_utils.jagged_or_dense_index_select_dim0": _NO_RAGGED_TENSORS,
    "initialization": _NO_TRAINING,
    **dict.fromkeys(
        (
            *("checkpoints", "row_wise_adagrad", "train", "training", "training_dlrm", "training_dlrmv3"),
            "training_hstu",
            "training_state",
            "training_tasks",
        ),
        _NO_TRAINING,
    ),
    "embedding_modules.LocalEmbeddingModule.reset_params": _NO_TRAINING,
    "embedding_modules.CategoricalEmbeddingModule.reset_params": _NO_TRAINING,
    **{
        f"input_features_preprocessors.{preprocessor}.reset_state": _NO_TRAINING
        for preprocessor in (
            "LearnablePositionalEmbeddingInputFeaturesPreprocessor",
            "LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor",
            "CombinedItemAndRatingInputFeaturesPreprocessor",
        )
    },
    "hstu_dense.HSTUDenseModel.reset_params": _NO_TRAINING,
    "build.build_dlrm.validate_inputs": _TRACED,
    "criteo_dataset": "it reads files for training; Tripy has no data sets",
    "dlrm_sample_run": _NO_TRAINING,
    "embedding_bags.NumpyRandom": _NO_TRAINING,
    "embedding_bags.fill_uniform": _NO_TRAINING,
    "embedding_bags.bags_from_lists": "it makes the sample run's input; the caller makes an executable's",
    "embedding_bags.pool_bags.sparse": _NO_GRADIENTS,
    "dlrm_layers.create_mlp.init": _NO_TRAINING,
    "dlrm_layers.create_mlp.rng": _NO_TRAINING,
    "dlrm_layers.FeatureInteraction.extra_repr": _PRINTING,
    "dlrm.DLRM_Net.__init__.mlp_init": _NO_TRAINING,
    "dlrm.DLRM_Net.__init__.validate_inputs": _TRACED,
    **{
        f"{maker}.{parameter}": reason
        for maker in (
            "dlrm.DLRM_Net.__init__",
            "dlrm.create_emb",
            "embedding_bags.EmbeddingBag.__init__",
            "int4_embedding_bags.Int4EmbeddingBag.__init__",
            "int8_embedding_bags.Int8EmbeddingBag.__init__",
            "md_embedding_bag.PrEmbeddingBag.__init__",
            "qr_embedding_bag.QREmbeddingBag.__init__",
        )
        for parameter, reason in (("sparse", _NO_GRADIENTS), ("rng", _NO_TRAINING))
    },
    **dict.fromkeys(
        (f"quantisers.{name}" for name in ("fp8_numbers", "fp8_ties", "round_to_codes")),
        "the quantize operation rounds and saturates",
    ),
    "quantisers.observing": "scales follow from the reference's tensors",
    "embedding_bags.EmbeddingBag.extra_repr": _PRINTING,
    "qr_embedding_bag.QREmbeddingBag.extra_repr": _PRINTING,
}

_STATIC_SHAPES = "the shapes of a graph cannot follow from the values in it, such as the longest bag's length"

#: Parameters of the port that the reference lacks, each with the reason.
ADDITIONS: dict[str, str] = {
    f"{owner}.max_bag_size": _STATIC_SHAPES
    for owner in (
        "dlrm.DLRM_Net.__init__",
        "dlrm.create_emb",
        "embedding_bags.EmbeddingBag.__init__",
        "embedding_bags.check_bags",
        "embedding_bags.pool_bags",
        "int4_embedding_bags.Int4EmbeddingBag.__init__",
        "int8_embedding_bags.Int8EmbeddingBag.__init__",
        "md_embedding_bag.PrEmbeddingBag.__init__",
        "qr_embedding_bag.QREmbeddingBag.__init__",
    )
}
