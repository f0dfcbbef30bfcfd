"""Initial weights of the shipped cases are these bits: reports and results refer to their digests."""

import pytest

from cases.shipped import load_case
from parity.inputs.weights import case_weights, digest

DIGESTS = {
    "dlrm_lecture_index": "4d53c17313e5a7ee78eef2c1dad99686afcc9ca202e4db6d40d776f9dbd5083b",
    "dlrm_tiny": "4dc61e66b7887724525af725161d75d1ebbdf481693dbcfb1edf10a1e55715f0",
    "dlrm_tiny_md": "1b9cbdcc6bd513de3e2a7f1fb81a12dd23333cffdaec9a431b1417c8b41f93b6",
    "dlrm_tiny_qr": "32f7da38f2405260848ea9996359261d4a9317b5f4f255cc73f1161c47e869c1",
    "dlrm_tiny_weighted": "bb51a7e77f150ebc915f43829b363ddf94a15db92e87a6e5e2f9a0e2cadf8a0e",
    "hstu_ml1m": "708ff96a51ef7908e7d7510911a8c14ff9c157fdb488a31a5a6c9ef06edf1470",
    "hstu_tiny": "57a31ad198766b9301b53688124107840368801308c9fa99dda15ec169c419a8",
    "hstu_tiny_combined": "b1e06d6e539163fcee4b8bb785ccc0af41a0681892bee96629225cbdf120d0f2",
    "hstu_tiny_rated": "5b10a8f301d46316586f3159726a43b77d4ad7edc4714dd40c6bf5d9f8636d0a",
    "stu_tiny": "2c88c562440a48ee3d519280d0066d4c570b2288d7bbcdc62634dffdc1097a74",
    "stu_tiny_group": "179c91ee947cded1a2a62daaf8996de1a5211622e89382e64291878f73b7f674",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_initial_weights_are_these(name):
    tensors, _ = case_weights(load_case(name))
    assert digest(tensors) == DIGESTS[name]
