"""Which arguments of both sides belong together, and which ones the port's module need not have."""

import torch

from parity.base.precision import PRECISIONS
from parity.verdict.arguments import judge_arguments, same_arguments
from parity.verdict.evidence import Evidence, Results
from parity.verdict.tolerance import Tolerated
from tests.parity.verdict.received_calls import capture, tensor

CALL = "block@1"
X, Y, MASK = tensor(4, 3), tensor(4, 3, seed=5), torch.ones(4, dtype=torch.bool)
TURNED = 2 * X


def sides(theirs, ours, oracle=None):
    """The evidence and results of one call: values of both sides' arguments and facts, or values alone."""
    reference, port = (
        capture((CALL, *side)) if isinstance(side, tuple) else capture((CALL, side))
        for side in (theirs, ours)
    )
    exact = {} if oracle is None else {"oracle_received": capture((CALL, oracle))}
    evidence = Evidence(PRECISIONS["fp32"], "forward", reference, {}, {}, {}, {}, {}, 4, **exact)
    return evidence, Results({}, received=port)


def told(theirs, ours, oracle=None):
    """The arguments that differ, with the kind of their difference, and those that are equal."""
    evidence, results = sides(theirs, ours, oracle)
    calls = judge_arguments(evidence, results, 9, True, lambda _: None, Tolerated())
    differing = {one.name: one.kind for call in calls for one in call.differing}
    return differing, {name for call in calls for name in call.equal}


def of_self_attention(places=("states", "states"), **more):
    """The reference's query and key, which are one tensor, and further arguments."""
    values = {"query": X, "key": X, **more}
    return values, {"origins": dict(zip(("query", "key"), places, strict=True))}


def test_a_key_that_is_the_query_need_not_be_an_argument_of_the_port():
    ours = {"query": X}, {"origins": {"query": "states"}}
    assert told(of_self_attention(), ours) == ({}, set())
    # An earlier argument of the same call is known by its own name.
    assert told(of_self_attention(("", f"{CALL}(query)")), {"query": X}) == ({}, set())
    assert told(of_self_attention(("", "block(query)")), {"query": X})[0] == {"key": "signature"}


def test_a_key_that_the_port_receives_in_another_form_is_told():
    ours = {"query": X, "key": X.half()}, {"origins": {"query": "states"}}
    assert told(of_self_attention(), ours) == ({"key": "form"}, {"query"})


def test_a_key_that_is_no_other_argument_is_missed():
    ours = {"query": X}, {"origins": {"query": "states"}}
    assert told(of_self_attention(("states", "memory")), ours)[0] == {"key": "signature"}
    assert told(of_self_attention(("states", "")), ours)[0] == {"key": "signature"}


def test_a_difference_behind_a_key_that_is_left_out_is_told():
    ours = {"query": X, "mask": ~MASK}, {"origins": {"query": "states"}}
    assert told(of_self_attention(mask=MASK), ours) == ({"mask": "value"}, {"query"})


def test_another_form_of_a_key_that_is_the_query_counts_under_its_own_name():
    facts = {"origins": {"query": "states"}}
    assert told(of_self_attention(), ({"query": X, "key": X[:2]}, facts))[0] == {"key": "form"}
    # Under another name it is another parameter, which stands for nothing.
    assert told(of_self_attention(), ({"query": X, "size": X[:2]}, facts)) == ({}, set())


def test_a_wrong_key_is_told_under_another_name():
    facts = {"origins": {"query": "states"}}
    assert told(of_self_attention(), ({"query": X, "memory": TURNED}, facts))[0] == {"key": "value"}


def test_arguments_of_other_names_pair_by_the_tensor_that_they_are():
    theirs = {"query": X, "key": Y}, {"origins": {"query": "states", "key": "memory"}}
    turned = {"k": Y, "q": X}, {"origins": {"q": "states", "k": "memory"}}
    assert told(theirs, turned) == ({}, set())


def test_parts_of_an_argument_of_another_name_pair_by_their_own_names():
    places = {"places": dict.fromkeys(("payload.first", "payload.second", "p.first", "p.second"), 0)}
    theirs = {"payload.first": X, "payload.second": Y}, places
    assert told(theirs, ({"p.second": Y, "p.first": X}, places)) == ({}, set())
    assert told(theirs, ({"p.second": X, "p.first": Y}, places))[0] == {
        "payload.first": "value",
        "payload.second": "value",
    }


def test_parts_of_another_container_pair_by_their_order():
    """The numbers of a list stand for the names of a dictionary, for each parameter by itself."""
    theirs = {"pair.a": X, "pair.b": Y, "pair.c": TURNED, "other.a": Y, "other.b": X}
    ours = {"other[0]": Y, "other[1]": X, "pair[0]": X, "pair[1]": Y, "pair[2]": TURNED}
    places = {"places": {name: int(name.startswith("other")) for name in (*theirs, *ours)}}
    assert told((theirs, places), (ours, places)) == ({}, set())
    turned = ours | {"pair[0]": Y, "pair[1]": X}
    assert told((theirs, places), (turned, places))[0] == {"pair.a": "value", "pair.b": "value"}


def test_the_order_counts_the_parts_that_pair_otherwise():
    """The second part is known by its origin, and stands first in the port's list."""
    theirs = {"pair.a": X, "pair.b": Y, "pair.c": TURNED}
    ours = {"pair[0]": Y, "pair[1]": X, "pair[2]": TURNED}
    facts = {
        "places": dict.fromkeys((*theirs, *ours), 0),
        "origins": {"pair.b": "memory", "pair[0]": "memory"},
    }
    differing, equal = told((theirs, facts), (ours, facts))
    assert differing == {"pair.a": "signature", "pair[1]": "form"}
    assert equal == {"pair.b", "pair.c"}


def test_containers_of_unequal_length_have_no_order():
    theirs, ours = {"pair.a": X, "pair.b": Y}, {"pair[0]": X}
    places = {"places": dict.fromkeys((*theirs, *ours), 0)}
    assert told((theirs, places), (ours, places))[0] == {
        "pair.a": "signature",
        "pair.b": "signature",
        "pair[0]": "form",
    }


def test_one_tensor_that_is_two_arguments_is_equal_in_neither():
    """The later argument is known by the name of the earlier one, which is wrong."""
    origins = {"origins": {"key": f"{CALL}(query)"}}
    own = {"query": X, "key": X, "mask": MASK}
    wrong = own | {"query": TURNED, "key": TURNED}
    assert told((own, origins), (wrong, origins)) == ({"query": "value"}, {"mask"})
    assert told((own, origins), (own | {"mask": ~MASK}, origins)) == ({"mask": "value"}, {"query", "key"})


def test_an_argument_with_merged_axes_is_compared():
    theirs = {"x": tensor(4, 3, 2)}
    assert told(theirs, {"x": theirs["x"].reshape(12, 2)}) == ({}, set())
    assert told(theirs, {"x": 2 * theirs["x"].reshape(12, 2)})[0] == {"x": "value"}


def test_an_argument_in_bfloat16_is_compared():
    assert told({"x": X.bfloat16()}, {"x": X.bfloat16()}) == ({}, set())
    assert told({"x": X.bfloat16()}, {"x": TURNED.bfloat16()})[0] == {"x": "value"}


def test_the_first_wrong_argument_alone_keeps_its_tensors():
    evidence, results = sides({"x": X, "y": Y}, {"x": TURNED, "y": 2 * Y})
    reference, port = evidence.reference, results.received
    later = capture(("later", {"x": X})), capture(("later", {"x": TURNED}))
    for run, other in zip((reference, port), later, strict=True):
        run.arguments |= other.arguments
        run.call_inputs |= other.call_inputs
    first, second = judge_arguments(evidence, results, 9, True, lambda _: None, Tolerated())
    assert (first.call, second.call, second.wrong.failed) == (CALL, "later", None)
    assert first.wrong.failed.port.tolist() == TURNED.double().tolist()


def is_same(theirs, ours, oracle=None):
    evidence, results = sides(theirs, ours, oracle)
    received = (run.arguments[CALL] for run in (evidence.reference, results.received))
    return same_arguments(evidence, results)(CALL, *received)


def test_calls_receive_the_same_where_their_elements_are():
    assert is_same({"x": X}, {"x": X})
    assert not is_same({"x": X}, {"x": TURNED})
    assert not is_same({"x": X, "y": Y}, {"x": X})
    # The origin names a call, whose number may be another one on the other side.
    facts = {"origins": {"x": "block"}}
    assert not is_same(({"x": X}, facts), ({"x": TURNED}, facts))


def test_calls_receive_the_same_within_rounding():
    exact = {"x": X.double() * (1 + 1e-7)}
    assert is_same({"x": X}, {"x": X * (1 - 1e-7)}, exact)
    assert not is_same({"x": X}, {"x": X * (1 - 1e-3)}, exact)
