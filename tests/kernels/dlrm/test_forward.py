"""The fused DLRM forward, against the reference with its state dict, whole and as a CUDA graph."""

import numpy as np
import pytest
import torch

from kernels.dlrm import Bags, KernelError
from kernels.dlrm.forward import FusedDLRM
from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge
from reference.dlrm import DLRM_Net
from reference.dlrm_layers import interaction_width
from tests.kernels.dlrm.kernel_setup import DEVICE, GPU, drawn, needs_products, unavailable

ROWS = (3, 50, 7, 200)
BOTTOM = (5, 20, 12, 16)
TOP = (40, 24, 1)
# Layers that follow each other: three at the bottom, the interaction, three at the top.
MODULES = len(BOTTOM) - 1 + 1 + len(TOP)


# With CUDA C++ the linear layers are Triton's.
FORMS = {
    "torch": {"backend": "torch"},
    "triton": {"backend": "triton"},
    "cuda": {"backend": "triton", "bags_backend": "cuda"},
}


def forms(*names):
    """Parameters for a test of these forms, each skipped with its reason where it cannot run."""
    actual = []
    for name in names or FORMS:
        reason = "; ".join(filter(None, map(unavailable, FORMS[name].values())))
        actual.append(pytest.param(name, marks=pytest.mark.skipif(bool(reason), reason=reason)))
    return pytest.mark.parametrize("form", actual)


def model(itself=False, sigmoid_bot=-1, **changes):
    widths = (interaction_width("dot", len(ROWS) + 1, BOTTOM[-1], itself), *TOP)
    return DLRM_Net(
        BOTTOM[-1],
        ROWS,
        BOTTOM,
        widths,
        arch_interaction_itself=itself,
        sigmoid_bot=sigmoid_bot,
        sigmoid_top=len(TOP) - 1,
        rng=np.random.RandomState(0),
        **changes,
    ).eval()


def batch_of(lengths, seed=0):
    """Dense features and bags by table, as the reference takes them."""
    generator = torch.Generator().manual_seed(seed)
    lS_o, lS_i = [], []
    for table, rows in enumerate(ROWS):
        turned = torch.tensor(lengths).roll(table)
        lS_o.append(turned.cumsum(0) - turned)
        lS_i.append(torch.randint(0, rows, (int(turned.sum()),), generator=generator))
    return drawn((len(lengths), BOTTOM[0]), seed), lS_o, lS_i


def mixed(net, dense, lS_o, lS_i, dtype):
    """The reference with its tables as they are and all else in ``dtype``."""
    device = dense.device
    net = net.to(device)
    vectors = [bag(lS_i[t].to(device), lS_o[t].to(device)).to(dtype) for t, bag in enumerate(net.emb_l)]
    bottom, top = (part.to(dtype) for part in (net.bot_l, net.top_l))
    return top(net.interaction(torch.stack((bottom(dense.to(dtype)), *vectors), dim=1)))


def on_device(bags):
    return Bags(bags.indices_L.to(DEVICE), bags.offsets.to(DEVICE))


def fused(net, dtype, form, **arguments):
    state = {name: value.to(DEVICE) for name, value in net.state_dict().items()}
    return FusedDLRM(state, sigmoid_top=len(TOP) - 1, dtype=dtype, **FORMS[form], **arguments)


def round_dense_layers(net, dtype):
    """The dense weights as the tested precision stores them, which the oracle gets, too."""
    for part in (net.bot_l, net.top_l):
        for value in part.parameters():
            value.data = value.data.to(dtype).float()
    return net


@forms()
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@torch.no_grad()
def test_the_reference_s_function(form, itself, precision):
    needs_products(precision, FORMS[form]["backend"])
    if form == "cuda" and precision == "fp32":
        pytest.skip("CUDA C++ takes half types")
    dtype = PRECISIONS[precision].dtype
    dense, lS_o, lS_i = batch_of([0, 1, 4, 2, 1, 0, 3] * 3)
    dense = dense.to(dtype)
    net = round_dense_layers(model(itself, sigmoid_bot=1), dtype)
    result = fused(net, dtype, form, itself=itself, sigmoid_bot=1)(
        dense.to(DEVICE), on_device(Bags.join(lS_o, lS_i))
    )
    oracle = mixed(net.double(), dense, lS_o, lS_i, torch.float64)
    reference = mixed(net.float(), dense.to(DEVICE), lS_o, lS_i, dtype).cpu()
    longest = max(*BOTTOM, *TOP, net.top_l[0].in_features)
    verdict = judge(oracle, reference, result.cpu(), PRECISIONS[precision], longest, modules=MODULES)
    assert verdict.passed, verdict.reason


@pytest.mark.skipif(not GPU, reason="no CUDA device: a CUDA graph needs one")
@forms("triton", "cuda")
@torch.no_grad()
def test_a_replay_is_the_forward(form):
    """Other inputs than those of the capture, fewer indices too; to the bit: the kernels are the same."""
    net = fused(model(), torch.bfloat16, form)
    capture = [2, 5, 1, 4]
    dense, lS_o, lS_i = batch_of(capture)
    graph = net.capture(dense.to(DEVICE, torch.bfloat16), on_device(Bags.join(lS_o, lS_i)))
    for seed, lengths in enumerate(([1, 1, 1, 1], [0, 3, 0, 0], capture), start=1):
        dense, lS_o, lS_i = batch_of(lengths, seed)
        dense, bags = dense.to(DEVICE, torch.bfloat16), on_device(Bags.join(lS_o, lS_i))
        assert torch.equal(graph(dense, bags), net(dense, bags))
    longer = on_device(Bags.join(*batch_of([9, 9, 9, 9])[1:]))
    with pytest.raises(KernelError, match="the graph takes up to 48"):
        graph(dense, longer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qr_flag": True, "qr_threshold": 10}, "no emb_l.1|tensors, but plain tables"),
        ({"weighted_pooling": "learned"}, "give one without .* learned pooling weights"),
    ],
    ids=["qr", "learned"],
)
def test_other_kinds_of_model_are_refused(changes, words):
    with pytest.raises(KernelError, match=words):
        FusedDLRM(model(**changes).state_dict())


def test_a_state_dict_that_does_not_fit():
    with pytest.raises(KernelError, match="no emb_l.0.weight: give the state dict of a DLRM_Net"):
        FusedDLRM({})
    state = model().state_dict()
    with pytest.raises(
        KernelError, match=r"top_l.0.weight has 26 columns: the interaction of these tables has 31"
    ):
        FusedDLRM(state, itself=True)
    missing = {name: value for name, value in state.items() if name != "top_l.2.bias"}
    with pytest.raises(KernelError, match="top_l.2.weight and no top_l.2.bias"):
        FusedDLRM(missing)


@pytest.mark.skipif(GPU, reason="there is a CUDA device")
def test_a_graph_needs_a_gpu():
    dense, lS_o, lS_i = batch_of([1, 2])
    net = FusedDLRM(model().state_dict(), dtype=torch.float32, backend="torch")
    with pytest.raises(KernelError, match="a CUDA graph needs a CUDA device"):
        net.capture(dense, Bags.join(lS_o, lS_i))
