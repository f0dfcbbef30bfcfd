"""Faults made by hand in the ported DLRM: the suite says so, and in the right place."""

import pytest

from tests.parity.fault_runs import RUNNER, TENSORS, Fault, assert_found_and_named, on_weights

MODEL = "tripy_port/dlrm.py"
LAYERS = "tripy_port/dlrm_layers.py"
BAGS = "tripy_port/embedding_bags.py"
ENDS = "    ends_B = tp.concatenate([starts_B[1:], tp.Tensor([0]) + length], dim=0)\n"
COLUMNS = "for column in range(row + 1 if self.itself else row)"

FAULTS = [
    Fault(
        "pairs_of_the_upper_triangle",
        LAYERS,
        COLUMNS,
        "for column in range(row if self.itself else row + 1, self.num_vectors)",
        "interaction",
        case="dlrm_tiny",
    ),
    Fault(
        "pairs_with_themselves",
        LAYERS,
        COLUMNS,
        "for column in range(row + 1)",
        "interaction",
        case="dlrm_tiny",
    ),
    Fault(
        "offsets_off_by_one",
        BAGS,
        "    starts_B = tp.cast(offsets_B, tp.int32)\n",
        "    starts_B = tp.cast(offsets_B, tp.int32) + 1\n",
        "emb_l.0",
        case="dlrm_tiny",
    ),
    Fault(
        "empty_bags_read_a_neighbour",
        BAGS,
        ENDS,
        f"{ENDS}    ends_B = tp.maximum(ends_B, starts_B + 1)\n",
        "emb_l.0",
        case="dlrm_tiny",
    ),
    Fault(
        "empty_bags_of_bounded_size_read_a_neighbour",
        BAGS,
        ENDS,
        f"{ENDS}    ends_B = tp.maximum(ends_B, starts_B + 1)\n",
        "emb_l.0",
        case="dlrm_tiny_qr",
    ),
    Fault(
        "bags_of_bounded_size_take_one_index_more",
        BAGS,
        "place_PB < ends_B",
        "place_PB <= ends_B",
        "emb_l.0.embs",
        case="dlrm_tiny_md",
    ),
    Fault(
        "weights_of_the_wrong_place",
        BAGS,
        "weights_PB = tp.gather(_with_spares(per_sample_weights_L, max_bag_size), 0, place_PB)",
        "weights_PB = tp.gather(_with_spares(per_sample_weights_L, max_bag_size + 1), 0, place_PB + 1)",
        "emb_l.0.embs",
        case="dlrm_tiny_md",
    ),
    Fault(
        "no_logarithm_of_the_dense_features",
        LAYERS,
        "tp.log(tp.cast(tp.maximum(counts_BC, 0) + 1, tp.float32))",
        "tp.cast(tp.maximum(counts_BC, 0) + 1, tp.float32)",
        "log_counts",
        case="dlrm_tiny",
    ),
    Fault(
        "two_tables_swapped",
        MODEL,
        "enumerate(self.named_children())\n        ]",
        "enumerate([*self.named_children()][::-1])\n        ]",
        "emb_l[0]",
        case="dlrm_tiny",
    ),
    Fault(
        "weights_of_two_tables_swapped",
        RUNNER,
        TENSORS,
        on_weights(
            'a, b = "emb_l.0.weight", "emb_l.2.weight"; tensors[a], tensors[b] = tensors[b], tensors[a]'
        ),
        "emb_l.0",
        case="dlrm_tiny",
    ),
    Fault(
        "sigmoid_twice_in_its_module",
        LAYERS,
        "        return tp.sigmoid(x)",
        "        return tp.sigmoid(tp.sigmoid(x))",
        "top_l.5",
        case="dlrm_tiny",
    ),
    Fault(
        "sigmoid_twice_in_the_model",
        MODEL,
        "click_B1 = self.top_l(self.interaction(features_BFD))",
        "click_B1 = tp.sigmoid(self.top_l(self.interaction(features_BFD)))",
        "predict.click",
        case="dlrm_tiny",
    ),
    Fault(
        "clamp_forgotten",
        MODEL,
        "if self.loss_threshold > 0.0:",
        "if self.loss_threshold > 0.5:",
        "predict.click",
        case="dlrm_tiny_weighted",
    ),
    Fault(
        "remainder_of_another_modulus",
        "tripy_port/qr_embedding_bag.py",
        "indices_L - quotients_L * self.num_collisions",
        "indices_L - quotients_L * (self.num_collisions - 1)",
        "emb_l.0",
        case="dlrm_tiny_qr",
    ),
    Fault(
        "strangers_hash_to_the_second_row",
        "tripy_port/lecture_dlrm.py",
        "tp.where(first_B == num_tokens, 0, first_B)",
        "tp.where(first_B == num_tokens, 1, first_B)",
        "sparse_layer[0]",
        case="dlrm_lecture_index",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    assert_found_and_named(fault, tmp_path)
