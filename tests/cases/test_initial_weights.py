"""Initial weights of the shipped cases are these bits: reports and results refer to their digests."""

import pytest

from cases.shipped import load_case
from parity.inputs.weights import case_weights, digest

DIGESTS = {
    "dlrm_lecture_index": "e449ba4ad96310ca06d570166b10f072371fcfb27b41dc36ac0f5202c1801814",
    "dlrm_tiny": "4dc61e66b7887724525af725161d75d1ebbdf481693dbcfb1edf10a1e55715f0",
    "dlrm_tiny_md": "1b9cbdcc6bd513de3e2a7f1fb81a12dd23333cffdaec9a431b1417c8b41f93b6",
    "dlrm_tiny_qr": "3ae44fd1cd153e0ab952b64d1db4e1f0db9171cdbcb6e2a2561ccec5a34b6cf0",
    "dlrm_tiny_weighted": "b61d0bf8b83a40cb7b0300530709ad13f416e27d3e0ebe64214c17f1575cb306",
    "hstu_ml1m": "708ff96a51ef7908e7d7510911a8c14ff9c157fdb488a31a5a6c9ef06edf1470",
    "hstu_tiny": "57a31ad198766b9301b53688124107840368801308c9fa99dda15ec169c419a8",
    "hstu_tiny_combined": "5e344d4bbe782dbc578d520ff3ce5784915830d8896bd9fa932b8ef156a1ec12",
    "hstu_tiny_rated": "7de2d86eca384cff069d6601c05b5e7aca05048fa4d8b1661bf3f1fde8522cde",
    "stu_tiny": "2c88c562440a48ee3d519280d0066d4c570b2288d7bbcdc62634dffdc1097a74",
    "stu_tiny_group": "179c91ee947cded1a2a62daaf8996de1a5211622e89382e64291878f73b7f674",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_initial_weights_are_these(name):
    tensors, _ = case_weights(load_case(name))
    assert digest(tensors) == DIGESTS[name]
