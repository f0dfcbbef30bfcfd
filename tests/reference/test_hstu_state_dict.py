"""Checkpoints of the public models load strictly: names, shapes and dtypes."""

from __future__ import annotations

import pytest
import torch

from configs import load_case
from reference.build import build_hstu
from tests.reference.hstu_setup import PREPROCESSORS, small_config

# From the public configs/ml-1m/hstu-sampled-softmax-n128{,-large}-final.gin, research/trainer/train.py
# (gr_output_length 10, and one) and research/data/preprocessor.py (largest item id 3952).
PUBLIC_MODELS = {
    "hstu_ml1m": {"blocks": 2, "heads": 1, "dqk": 50, "dv": 50, "dim": 50, "items": 3952, "width": 211},
    "hstu_ml1m_large": {"blocks": 8, "heads": 2, "dqk": 25, "dv": 25, "dim": 50, "items": 3952, "width": 211},
}


def public_state(blocks, heads, dqk, dv, dim, items, width):
    """name -> (shape, dtype) of every tensor in a public checkpoint."""
    f32 = torch.float32
    state = {
        "_attn_mask": ((width, width), torch.bool),
        "_embedding_module._item_emb.weight": ((items + 1, dim), f32),
        "_input_features_preproc._pos_emb.weight": ((width, dim), f32),
    }
    for block in range(blocks):
        prefix = f"_hstu._attention_layers.{block}"
        state[f"{prefix}._uvqk"] = ((dim, 2 * heads * dv + 2 * heads * dqk), f32)
        state[f"{prefix}._rel_attn_bias._ts_w"] = ((129,), f32)
        state[f"{prefix}._rel_attn_bias._pos_w"] = ((2 * width - 1,), f32)
        state[f"{prefix}._o.weight"] = ((dim, heads * dv), f32)
        state[f"{prefix}._o.bias"] = ((dim,), f32)
    return state


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("case", sorted(PUBLIC_MODELS))
def test_public_checkpoint_loads_strictly(case, layout):
    expected = public_state(**PUBLIC_MODELS[case])
    assert len(expected) == {"hstu_ml1m": 13, "hstu_ml1m_large": 43}[case]
    model = build_hstu(load_case(case).model, layout)
    actual = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()}
    assert actual == expected
    checkpoint = {name: torch.ones(shape, dtype=dtype) for name, (shape, dtype) in expected.items()}
    model.load_state_dict(checkpoint, strict=True)
    assert all(torch.equal(tensor, checkpoint[name]) for name, tensor in model.state_dict().items())


def test_strict_loading_refuses():
    model = build_hstu(small_config())
    state = model.state_dict()
    key = "_hstu._attention_layers.1._o.weight"
    for broken, message in (
        ({name: tensor for name, tensor in state.items() if name != key}, "Missing key"),
        ({**state, "_norm_input.weight": torch.ones(3)}, "Unexpected key"),
        ({**state, key: state[key].t()}, "size mismatch"),
    ):
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(broken, strict=True)


@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_optional_tensors(preprocessor):
    config = small_config(
        preprocessor,
        embedding="categorical",
        num_categories=7,
        normalization="softmax_rel_bias",
        relative_attention_bias="positional",
        concat_ua=True,
    )
    state = build_hstu(config).state_dict()
    width = 24 if preprocessor == "combined" else 12
    dim = 17 if preprocessor == "rated" else 12
    assert state["_attn_mask"].shape == (width, width)
    assert state["_input_features_preproc._pos_emb.weight"].shape == (width, dim)
    assert state["_embedding_module._item_id_to_category_id"].tolist() == [i % 7 for i in range(40)]
    assert state["_hstu._attention_layers.0._rel_attn_bias._w"].shape == (2 * width - 1,)
    assert state["_hstu._attention_layers.0._o.weight"].shape == (dim, 3 * 2 * 7)
    rating = "_input_features_preproc._rating_emb.weight"
    assert (rating in state) is (preprocessor != "positional")
    if preprocessor != "positional":
        assert state[rating].shape == (6, 5 if preprocessor == "rated" else 12)
    no_bias = build_hstu(config.model_copy(update={"relative_attention_bias": "none"}))
    assert not [name for name in no_bias.state_dict() if "_rel_attn_bias" in name]


def test_layouts_have_the_same_modules():
    config = small_config("rated")
    dense, jagged = build_hstu(config), build_hstu(config, "jagged")
    assert [name for name, _ in dense.named_modules()] == [name for name, _ in jagged.named_modules()]
    assert list(dense.state_dict()) == list(jagged.state_dict())
