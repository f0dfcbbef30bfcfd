"""What of `reference` has no counterpart in `tripy_port`, and why.

A key is a file of the reference without its suffix, or a class, function, method or parameter in it; it
covers all that it contains. `tests/test_layout.py` checks that whatever is not listed here has its
counterpart, and that nothing is listed that has one.
"""

from __future__ import annotations

_NO_RAGGED_TENSORS = "Tripy has no ragged tensors; the dense layout computes the same function"
_NO_TRAINING = "Tripy runs inference: every value comes from a shared state dict, none is drawn"
_NOT_YET = "DLRM has not been ported yet"

GAPS: dict[str, str] = {
    "hstu": _NO_RAGGED_TENSORS,
    "jagged_ops": _NO_RAGGED_TENSORS,
    "build.build_hstu.layout": _NO_RAGGED_TENSORS,
    "build.build_hstu.jagged_backend": _NO_RAGGED_TENSORS,
    "sequence_utils.jagged_or_dense_repeat_interleave_dim0": _NO_RAGGED_TENSORS,
    "sequence_utils.jagged_or_dense_index_select_dim0": _NO_RAGGED_TENSORS,
    "initialization": _NO_TRAINING,
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
    "criteo_dataset": _NOT_YET,
    "dlrm": _NOT_YET,
    "dlrm_layers": _NOT_YET,
    "dlrm_sample_run": _NOT_YET,
    "embedding_bags": _NOT_YET,
    "lecture_dlrm": _NOT_YET,
    "md_embedding_bag": _NOT_YET,
    "qr_embedding_bag": _NOT_YET,
}
