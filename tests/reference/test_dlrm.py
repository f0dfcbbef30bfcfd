"""DLRM_Net: keys, interaction, options, dtypes, refusals and export, against definitions and public facts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from reference.dlrm import DLRM_Net
from reference.dlrm_layers import FeatureInteraction, create_mlp, interaction_width
from reference.embedding_bags import BagInputError, bags_from_lists

ROWS = (50, 300, 7)
DIM = 4
BATCH = 6
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def make_model(op="dot", itself=False, dim=DIM, rows=ROWS, seed=0, **options):
    width = interaction_width(op, len(rows) + 1, dim, itself)
    options = {"m_spa": dim, "sigmoid_top": 1, "rng": np.random.RandomState(seed), **options}
    return DLRM_Net(
        ln_emb=rows,
        ln_bot=(3, 8, dim),
        ln_top=(width, 8, 1),
        arch_interaction_op=op,
        arch_interaction_itself=itself,
        **options,
    )


def make_inputs(rows=ROWS, batch=BATCH, seed=1):
    rng = np.random.RandomState(seed)
    dense_x = torch.from_numpy(rng.normal(size=(batch, 3)).astype(np.float32))
    tables = [
        bags_from_lists([rng.randint(0, n, rng.randint(0, 4)).tolist() for _ in range(batch)]) for n in rows
    ]
    indices, offsets = zip(*tables, strict=True)
    return dense_x, list(offsets), list(indices)


def one_hot_inputs(batch=BATCH):
    rng = np.random.RandomState(2)
    dense_x = torch.from_numpy(rng.normal(size=(batch, 3)).astype(np.float32))
    indices = torch.from_numpy(np.stack([rng.randint(0, n, batch) for n in ROWS]))
    return dense_x, torch.arange(batch).expand(len(ROWS), batch), indices


@pytest.mark.parametrize(
    ("options", "table_1"),
    [
        ({}, {"emb_l.1.weight": (300, 4)}),
        (
            {"qr_flag": True, "qr_collisions": 7},
            {"emb_l.1.weight_q": (43, 4), "emb_l.1.weight_r": (7, 4)},
        ),
        (
            {"md_flag": True, "m_spa": [4, 2, 4]},
            {"emb_l.1.embs.weight": (300, 2), "emb_l.1.proj.weight": (4, 2)},
        ),
    ],
    ids=["plain", "qr", "md"],
)
def test_keys_are_the_public_ones(options, table_1):
    expected = {
        "emb_l.0.weight": (50, 4),
        **table_1,
        "emb_l.2.weight": (7, 4),
        **{"bot_l.0.weight": (8, 3), "bot_l.0.bias": (8,), "bot_l.2.weight": (4, 8), "bot_l.2.bias": (4,)},
        **{"top_l.0.weight": (8, 10), "top_l.0.bias": (8,), "top_l.2.weight": (1, 8), "top_l.2.bias": (1,)},
    }
    model = make_model(**options)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == expected
    assert list(model.state_dict()) == list(expected)
    checkpoint = {key: torch.full(shape, 0.5) for key, shape in expected.items()}
    model.load_state_dict(checkpoint, strict=True)
    assert torch.equal(model.bot_l[2].bias, torch.full((4,), 0.5))
    with pytest.raises(RuntimeError, match=r"Missing key.*emb_l\.2\.weight"):
        model.load_state_dict({key: value for key, value in checkpoint.items() if key != "emb_l.2.weight"})


def test_learned_pooling_weights_have_public_keys():
    model = make_model(weighted_pooling="learned")
    assert [key for key in model.state_dict() if key.startswith("v_W_l")] == ["v_W_l.0", "v_W_l.1", "v_W_l.2"]
    assert "v_W_l.0" not in make_model(weighted_pooling="fixed").state_dict()


def test_published_architectures_have_the_published_widths():
    # ln_top[0] in tools/visualize.py of facebookresearch/dlrm: Kaggle, Terabyte, MLPerf.
    assert [interaction_width("dot", 27, dim) for dim in (16, 64, 128)] == [367, 415, 479]
    assert interaction_width("dot", 4, 2) == 8
    assert interaction_width("dot", 27, 16, itself=True) == 16 + 27 * 28 // 2
    assert interaction_width("cat", 27, 16) == 432
    assert interaction_width("sum", 27, 16) == 16


def exact_values(rng, *shape):
    """Sixteenths from -1 to 1: sums and products of them are exact in float64, in whatever order."""
    return torch.randint(-16, 17, shape, generator=rng).double() / 16


@pytest.mark.parametrize("itself", [False, True])
def test_dot_pairs_come_in_the_public_order(itself):
    x_BFD = exact_values(torch.Generator().manual_seed(1), 2, 5, 3)
    rows = [x_BFD[:, 0]]
    for i in range(5):
        for j in range(i + 1 if itself else i):
            rows.append((x_BFD[:, i] * x_BFD[:, j]).sum(dim=1, keepdim=True))
    expected = torch.cat(rows, dim=1)
    actual = FeatureInteraction("dot", 5, itself)(x_BFD)
    assert actual.shape[1] == interaction_width("dot", 5, 3, itself)
    assert torch.equal(actual, expected)


def test_cat_and_sum_are_the_readme_definitions():
    x_BFD = torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.equal(FeatureInteraction("cat", 3)(x_BFD), torch.cat(x_BFD.unbind(1), dim=1))
    assert torch.equal(FeatureInteraction("sum", 3)(x_BFD), x_BFD[:, 0] + x_BFD[:, 1] + x_BFD[:, 2])


@pytest.mark.parametrize("op", ["dot", "cat", "sum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_runs_in_every_dtype(op, dtype):
    model = make_model(op).to(dtype)
    dense_x, offsets, indices = make_inputs()
    with torch.no_grad():
        click_B1 = model(dense_x.to(dtype), offsets, indices)
    assert click_B1.shape == (BATCH, 1)
    assert click_B1.dtype == dtype
    assert bool(((click_B1 > 0) & (click_B1 < 1)).all())


def test_forward_is_its_parts():
    model, rng = make_model().double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(exact_values(rng, *parameter.shape))
    dense_x, offsets, indices = make_inputs()
    dense_x = exact_values(rng, *dense_x.shape)
    hidden = torch.relu(dense_x @ model.bot_l[0].weight.T + model.bot_l[0].bias)
    vectors = [torch.relu(hidden @ model.bot_l[2].weight.T + model.bot_l[2].bias)]
    for table, bag in enumerate(model.emb_l):
        ends = [*offsets[table].tolist()[1:], len(indices[table])]
        spans = zip(offsets[table].tolist(), ends, strict=True)
        vectors.append(torch.stack([bag.weight[indices[table][start:end]].sum(0) for start, end in spans]))
    products = [(vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(4) for j in range(i)]
    z = torch.cat([vectors[0], *products], dim=1)
    hidden = torch.relu(z @ model.top_l[0].weight.T + model.top_l[0].bias)
    expected = torch.sigmoid(hidden @ model.top_l[2].weight.T + model.top_l[2].bias)
    assert torch.equal(model(dense_x, offsets, indices), expected)
    assert expected.unique().numel() == BATCH


def test_list_and_stacked_inputs_agree():
    model = make_model()
    dense_x, offsets, indices = one_hot_inputs()
    stacked = model(dense_x, offsets, indices)
    assert torch.equal(stacked, model(dense_x, list(offsets), list(indices)))


@pytest.mark.parametrize("layer", [-1, 0, 1])
def test_sigmoid_goes_where_it_is_asked(layer):
    model = make_model(sigmoid_bot=layer, sigmoid_top=layer)
    for mlp in (model.bot_l, model.top_l):
        kinds = [type(mlp[2 * index + 1]) for index in range(2)]
        assert kinds == [nn.Sigmoid if index == layer else nn.ReLU for index in range(2)]


def interacting_vectors(model, inputs):
    dense_x, offsets, indices = inputs
    return torch.stack((model.bot_l(dense_x), *model.apply_emb(offsets, indices)), dim=1)


def test_loss_threshold_clamps_both_ends():
    inputs = make_inputs()
    free, clamped = make_model(), make_model(loss_threshold=0.45)
    hidden_BH = free.top_l[:2](free.interaction(interacting_vectors(free, inputs)))
    with torch.no_grad():
        for model in (free, clamped):
            model.top_l[2].weight *= 50
            model.top_l[2].bias.copy_(-(hidden_BH @ model.top_l[2].weight.T).median())
    expected = free(*inputs).clamp(0.45, 0.55)
    assert {0.45, 0.55} <= {round(value, 6) for value in expected.flatten().tolist()}
    assert torch.equal(clamped(*inputs), expected)


def test_per_sample_weights_scale_their_rows():
    model = make_model()
    dense_x, offsets, indices = one_hot_inputs()
    weights = [torch.linspace(0.5, 2.0, BATCH) + table for table in range(len(ROWS))]
    actual = model.apply_emb(offsets, indices, weights)
    for table, pooled_BD in enumerate(actual):
        expected_BD = model.emb_l[table].weight[indices[table]] * weights[table][:, None]
        assert torch.equal(pooled_BD, expected_BD)


def test_learned_weights_scale_their_rows_and_train():
    model = make_model(weighted_pooling="learned")
    dense_x, offsets, indices = one_hot_inputs()
    plain = make_model()(dense_x, offsets, indices)
    assert torch.equal(model(dense_x, offsets, indices), plain)
    with torch.no_grad():
        model.v_W_l[0].copy_(torch.arange(50.0))
    pooled_BD = model.apply_emb(offsets, indices)[0]
    assert torch.equal(pooled_BD, model.emb_l[0].weight[indices[0]] * indices[0].float()[:, None])
    doubled = model.apply_emb(offsets, indices, [torch.full((BATCH,), 2.0)] * 3)[0]
    assert torch.equal(doubled, 2 * pooled_BD)
    model(dense_x, offsets, indices).sum().backward()
    assert all(weight.grad is not None for weight in model.v_W_l)


def test_tables_get_sparse_gradients_unless_told_otherwise():
    inputs = make_inputs()
    gradients = []
    for sparse in (True, False):
        model = make_model(sparse=sparse)
        model(*inputs).sum().backward()
        gradients.append(model.emb_l[1].weight.grad)
    assert gradients[0].is_sparse
    assert not gradients[1].is_sparse
    torch.testing.assert_close(gradients[0].to_dense(), gradients[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, o, i: (x[:, :2], o, i), r"dense_x has shape \(6, 2\): give \(batch, 3\)"),
        (lambda x, o, i: (x, o[:2], i), r"lS_o has 2 entries: give one for each of 3 tables"),
        (lambda x, o, i: (x[:5], o, i), r"table 0: 6 bags for 5 rows of dense_x"),
        (
            lambda x, o, i: (x, o, [i[0], i[1] + 300, i[2]]),
            r"table 1: index \d\d\d at position 0 is out of range: the table has 300 rows",
        ),
    ],
    ids=["dense", "tables", "batch", "index"],
)
def test_bad_inputs_are_refused(change, message):
    model, inputs = make_model(), make_inputs()
    with pytest.raises(BagInputError, match=message):
        model(*change(*inputs))
    with pytest.raises(BagInputError, match=message):
        model.check_inputs(*change(*inputs))


@pytest.mark.parametrize("options", [{"qr_flag": True}, {"md_flag": True, "m_spa": [4, 2, 4]}])
def test_compressed_tables_refuse_indices_beyond_their_categories(options):
    # 300 categories share 75 quotient rows: 300 itself would still find a row of both tables when n % c != 0.
    model = make_model(**options)
    dense_x, offsets, indices = make_inputs()
    indices[1] = indices[1].clone()
    indices[1][0] = 300
    with pytest.raises(BagInputError, match=r"table 1: index 300 at position 0"):
        model(dense_x, offsets, indices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "outer"}, r"arch_interaction_op='outer': choose one of 'dot', 'cat', 'sum'"),
        ({"sigmoid_top": 2}, r"sigmoid_top=2: choose -1 for none, or 0 to 1"),
        ({"loss_threshold": 0.5}, r"loss_threshold=0.5: choose from \[0, 0.5\)"),
        ({"m_spa": 5}, r"ln_bot\[-1\]=4: must be 5, the columns that table 0 \(50 rows\) gives"),
        ({"m_spa": [4, 4, 4]}, r"m_spa=\[4, 4, 4\]: must be an integer unless md_flag is set"),
        ({"qr_flag": True, "qr_operation": "concat"}, r"ln_bot\[-1\]=4: must be 8.*table 1 \(300 rows\)"),
        ({"qr_flag": True, "md_flag": True}, r"cannot be combined with md_flag"),
        ({"weighted_pooling": "mean"}, r"weighted_pooling='mean': choose one of 'learned', 'fixed'"),
        ({"weighted_pooling": "learned", "qr_flag": True}, r"weighted_pooling='learned': needs plain tables"),
        ({"mlp_init": "zeros"}, r"mlp_init='zeros'"),
        ({"rows": (50, 0, 7)}, r"num_embeddings=0: must be an integer of at least 1"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


def test_a_wrong_top_width_names_the_right_one():
    with pytest.raises(ValueError, match=r"ln_top\[0\]=11: must be 10"):
        DLRM_Net(4, ROWS, (3, 4), (11, 1))


def test_initial_values_follow_the_public_distributions():
    model = make_model(rows=(10_000, 40_000), dim=16)
    for table in model.emb_l:
        bound = table.num_embeddings**-0.5
        assert 0.99 * bound < table.weight.max() <= bound
        assert -bound <= table.weight.min() < -0.99 * bound
    mlp = create_mlp((300, 500, 100), -1, "normal", np.random.RandomState(0))
    assert abs(mlp[2].weight.std().item() / np.sqrt(2 / 600) - 1) < 0.02
    assert abs(mlp[0].bias.std().item() / np.sqrt(1 / 500) - 1) < 0.15


def test_global_numpy_seed_decides_the_initial_values():
    np.random.seed(9)
    first = make_model(rng=None).state_dict()
    np.random.seed(9)
    second = make_model(rng=None).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_model_made_on_meta_takes_its_tables_without_a_copy():
    loaded = make_model().state_dict()
    with torch.device("meta"):
        model = make_model()
    model.load_state_dict(loaded, strict=True, assign=True)
    assert model.emb_l[1].weight.data_ptr() == loaded["emb_l.1.weight"].data_ptr()
    inputs = make_inputs()
    assert torch.equal(model(*inputs), make_model()(*inputs))


@pytest.mark.sampled
@pytest.mark.parametrize("op", ["dot", "cat", "sum"])
@pytest.mark.parametrize(
    "options",
    [{}, {"qr_flag": True}, {"md_flag": True, "m_spa": [4, 2, 4]}, {"weighted_pooling": "learned"}],
    ids=["plain", "qr", "md", "learned"],
)
def test_one_export_serves_any_batch_and_any_bags(op, options):
    model = make_model(op, **options).eval()
    batch = torch.export.Dim("batch", min=2)
    lengths = [{0: torch.export.Dim(f"length_{table}")} for table in range(len(ROWS))]
    exported = torch.export.export(
        model, make_inputs(), dynamic_shapes=({0: batch}, [{0: batch}] * len(ROWS), lengths)
    ).module()
    for other in (make_inputs(batch=2, seed=3), make_inputs(batch=17, seed=4)):
        assert torch.equal(exported(*other), model(*other))
