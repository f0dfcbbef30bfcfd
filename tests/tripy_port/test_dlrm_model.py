"""The ported DLRM, whole: any batch and any bags in one executable, every interaction, by hand in NumPy."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest

from configs import DLRMConfig, load_case
from tests.tripy_port.port_setup import DTYPES, array, max_difference, runtime_input, tensor
from tests.tripy_port.test_dlrm_bags import in_one_list, summed
from tripy_port.build import build_dlrm
from tripy_port.dlrm import DLRM_Net
from tripy_port.dlrm_layers import FeatureInteraction, LogCounts, create_mlp, interaction_width
from tripy_port.embedding_bags import BagInputError

ROWS, DENSE, DIM = (40, 3, 17), 5, 4


def small_config(**changes: object) -> DLRMConfig:
    fields: dict[str, object] = {
        "arch_mlp_bot": f"{DENSE}-7-{DIM}",
        "arch_mlp_top": "6-1",
        "arch_sparse_feature_size": DIM,
        "arch_embedding_size": ROWS,
        **changes,
    }
    return DLRMConfig(**fields)


def with_values(model: DLRM_Net, dtype: tp.dtype = tp.float32, seed: int = 0) -> dict[str, np.ndarray]:
    """Give a model values that are exact in float16, and return them."""
    rng = np.random.default_rng(seed)
    values = {
        name: (rng.standard_normal(tuple(parameter.shape)) * 0.5).astype(np.float16).astype(np.float32)
        for name, parameter in sorted(model.state_dict().items())
    }
    model.load_state_dict({name: tensor(value, dtype) for name, value in values.items()})
    return values


def make_bags(batch: int, seed: int = 0, longest: int = 3) -> list[list[list[int]]]:
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, rows, rng.integers(0, longest + 1)).tolist() for _ in range(batch)] for rows in ROWS
    ]


def by_hand(
    values: dict[str, np.ndarray], counts: np.ndarray, bags: list, op: str, itself: bool
) -> np.ndarray:
    """float64, from the definitions."""

    def mlp(name: str, x: np.ndarray, sigmoid: bool) -> np.ndarray:
        layers = sorted(int(key.split(".")[1]) for key in values if key.startswith(name) and "weight" in key)
        for layer in layers:
            x = x @ values[f"{name}.{layer}.weight"].T.astype(np.float64) + values[f"{name}.{layer}.bias"]
            last = sigmoid and layer == layers[-1]
            x = 1.0 / (1.0 + np.exp(-x)) if last else np.maximum(x, 0.0)
        return x

    vectors = [mlp("bot_l", np.log(np.maximum(counts, 0) + 1.0), sigmoid=False)]
    vectors += [
        summed(values[f"emb_l.{table}.weight"], table_bags, None) for table, table_bags in enumerate(bags)
    ]
    if op == "cat":
        interaction = np.concatenate(vectors, axis=1)
    elif op == "sum":
        interaction = sum(vectors)
    else:
        pairs = [
            (vectors[i] * vectors[j]).sum(axis=1, keepdims=True)
            for i in range(len(vectors))
            for j in range(i + 1 if itself else i)
        ]
        interaction = np.concatenate([vectors[0], *pairs], axis=1)
    return mlp("top_l", interaction, sigmoid=True)


def executable(model: DLRM_Net) -> tp.Executable:
    tables = len(ROWS)
    infos = [
        tp.InputInfo([(1, 4, 9), DENSE], tp.int64),
        [tp.InputInfo([(1, 4, 9)], tp.int64) for _ in range(tables)],
        [tp.InputInfo([(0, 8, 40)], tp.int64) for _ in range(tables)],
    ]
    return tp.compile(model.predict, args=infos)


def arguments_for(counts: np.ndarray, bags: list) -> tuple:
    indices, offsets = zip(*(in_one_list(table_bags) for table_bags in bags), strict=True)
    return counts, list(offsets), list(indices)


@pytest.mark.parametrize("max_bag_size", [None, 3])
@pytest.mark.parametrize(("op", "itself"), [("dot", False), ("dot", True), ("cat", False), ("sum", False)])
def test_any_batch_and_any_bags_in_one_executable(op, itself, max_bag_size):
    config = small_config(arch_interaction_op=op, arch_interaction_itself=itself, max_bag_size=max_bag_size)
    model = build_dlrm(config)
    values = with_values(model)
    compiled = executable(model)
    rng = np.random.default_rng(1)
    for batch in (1, 4, 9):
        counts = rng.integers(-2, 10_000, (batch, DENSE))
        bags = make_bags(batch, seed=batch)
        if batch == 4:
            bags[1] = [[]] * batch  # a table that nobody asks anything
        arguments = arguments_for(counts, bags)
        placed = [
            [runtime_input(item) for item in part] if isinstance(part, list) else runtime_input(part)
            for part in arguments
        ]
        # Probabilities; float32 sums of a few dozen terms.
        difference = max_difference(array(compiled(*placed)), by_hand(values, counts, bags, op, itself))
        assert difference < 200 * 2.0**-24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("itself", [False, True])
def test_pairs_come_row_by_row_from_the_lower_triangle(dtype, itself):
    # Row i is 2 ** i, and zeros: every product tells which rows it is of.
    vectors = 4
    x = np.zeros((1, vectors, vectors + 1), dtype=np.float32)
    x[0, :, 0] = 2.0 ** np.arange(vectors)
    expected = [*x[0, 0]]
    for i in range(vectors):
        expected += [2.0 ** (i + j) for j in range(i + 1 if itself else i)]
    actual = array(FeatureInteraction("dot", vectors, itself)(tensor(x, dtype)))
    assert actual.tolist() == [expected]
    assert actual.shape[1] == interaction_width("dot", vectors, vectors + 1, itself)


def test_a_single_vector_has_no_pairs():
    x = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    assert array(FeatureInteraction("dot", 1)(tensor(x))).tolist() == x[:, 0].tolist()


def test_sums_of_half_tensors_are_rounded_once():
    # 2048 + 1 is 2048 in float16, and so is 2048 + 1 + 1 when every step is rounded.
    x = np.array([2048.0, 1.0, 1.0], dtype=np.float32).reshape(1, 3, 1)
    assert array(FeatureInteraction("sum", 3)(tensor(x, tp.float16))).tolist() == [[2050.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_beyond_float16_have_a_logarithm(dtype):
    counts = np.array([[-3, 0, 1, 70_000, 2**40]])
    like = tensor(np.ones(1, dtype=np.float32), dtype)
    actual = LogCounts()(tensor(counts), like)
    assert actual.dtype == dtype
    exact = np.log(np.maximum(counts, 0) + 1.0)
    unit_roundoff = {tp.float32: 2.0**-23, tp.float16: 2.0**-11, tp.bfloat16: 2.0**-8}[dtype]
    assert (np.abs(array(actual) - exact) <= 2 * unit_roundoff * exact).all()


def test_the_sigmoid_takes_its_layer():
    kinds = [type(layer).__name__ for _, layer in create_mlp([4, 3, 2, 1], sigmoid_layer=1).named_children()]
    assert kinds == ["Linear", "ReLU", "Linear", "Sigmoid", "Linear", "ReLU"]


def test_the_output_is_clamped():
    model = build_dlrm(small_config(loss_threshold=0.4))
    values = with_values(model)
    counts, bags = np.full((9, DENSE), 50), make_bags(9)
    plain = by_hand(values, counts, bags, "dot", False)
    assert (plain < 0.4).any() or (plain > 0.6).any()
    _, offsets, indices = arguments_for(counts, bags)
    actual = array(model.predict(tensor(counts), [tensor(o) for o in offsets], [tensor(i) for i in indices]))
    assert max_difference(actual, plain.clip(0.4, 0.6)) < 200 * 2.0**-24


def test_pooling_weights_and_per_sample_weights_multiply():
    model = build_dlrm(small_config(weighted_pooling="learned", arch_interaction_op="cat"))
    values = with_values(model)
    bags = make_bags(4)
    _, offsets, indices = arguments_for(np.zeros((4, DENSE)), bags)
    arguments = [np.linspace(0.5, 2.0, part.size).astype(np.float32) for part in indices]
    lS_o, lS_i, lS_w = ([tensor(entry) for entry in part] for part in (offsets, indices, arguments))
    for weights, factors in ((None, [1.0] * len(ROWS)), (lS_w, arguments)):
        pooled = model.apply_emb(lS_o, lS_i, weights)
        for table, table_bags in enumerate(bags):
            learned = values[f"v_W_l.{table}"][indices[table]] * factors[table]
            expected = summed(values[f"emb_l.{table}.weight"], table_bags, learned)
            assert max_difference(array(pooled[table]), expected) < 20 * 2.0**-24


def test_inputs_are_checked_before_they_reach_the_graph():
    model = build_dlrm(small_config(max_bag_size=2))
    counts, offsets, indices = arguments_for(np.zeros((2, DENSE), dtype=np.int64), [[[0], [1, 2]]] * 3)

    def check(counts=counts, offsets=offsets, indices=indices, weights=None):
        lists = [
            None if part is None else [tensor(entry) for entry in part]
            for part in (offsets, indices, weights)
        ]
        model.check_inputs(tensor(counts), *lists)

    check()
    with pytest.raises(BagInputError, match=r"dense_x has shape \(2, 4\): give \(batch, 5\)"):
        check(counts=counts[:, :4])
    with pytest.raises(BagInputError, match="lS_i has 2 entries: give one for each of 3 tables"):
        check(indices=indices[:2])
    with pytest.raises(
        BagInputError, match="table 1: index 3 at position 0 is out of range: the table has 3"
    ):
        check(indices=[indices[0], np.array([3, 1, 2]), indices[2]])
    with pytest.raises(BagInputError, match="table 0: bag 0 has 3 indices: the graph takes at most"):
        check(offsets=[np.array([0, 3]), *offsets[1:]])
    with pytest.raises(BagInputError, match="table 0: 1 bags for 2 rows of dense_x: give one offset"):
        check(offsets=[np.array([0]), *offsets[1:]], indices=[np.array([1]), *indices[1:]])
    with pytest.raises(BagInputError, match=r"table 2: \(1,\) per-sample weights for \(3,\) indices"):
        check(weights=[np.ones(3, np.float32), np.ones(3, np.float32), np.ones(1, np.float32)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ln_top": (9, 1)}, r"ln_top\[0\]=9: must be 10, the width of the interaction"),
        ({"ln_bot": (5, 3)}, r"ln_bot\[-1\]=3: must be 4, the columns that table 0 \(40 rows\) gives"),
        ({"sigmoid_top": 2}, "sigmoid_top=2: choose -1 for none, or 0 to 0"),
        ({"loss_threshold": 0.5}, r"loss_threshold=0.5: choose from \[0, 0.5\)"),
        ({"qr_flag": True, "md_flag": True}, "qr_flag=True: cannot be combined with md_flag"),
        ({"weighted_pooling": "learned", "qr_flag": True}, "weighted_pooling='learned': needs plain tables"),
        ({"weighted_pooling": "some"}, "weighted_pooling='some': choose one of 'learned', 'fixed'"),
        ({"max_bag_size": 0}, "max_bag_size=0: must be an integer of at least 1"),
        ({"arch_interaction_op": "max"}, "arch_interaction_op='max': choose one of 'dot', 'cat', 'sum'"),
        ({"ln_emb": ()}, r"ln_emb=\[\]: give at least one table"),
        ({"m_spa": [4, 4]}, r"m_spa=\[4, 4\]: must be an integer unless md_flag is set"),
    ],
)
def test_the_constructor_names_what_it_refuses(changes, message):
    arguments = {"m_spa": 4, "ln_emb": ROWS, "ln_bot": (5, 4), "ln_top": (10, 1), **changes}
    with pytest.raises(ValueError, match=message):
        DLRM_Net(**arguments)


def test_a_dtype_that_is_not_supported_is_refused():
    with pytest.raises(ValueError, match="dtype=int32: choose one of float32, float16, bfloat16"):
        build_dlrm(load_case("dlrm_tiny").model, tp.int32)
