"""The key of a request's keys and values, and the requests that a cache proves itself on."""

import numpy as np
import pytest

from cases.dlrmv3.inputs import ACTIONS, CANDIDATES, CONTEXT, UIH
from cases.dlrmv3.returning import FRESH, HAS_CONTEXT, QUERY_TIME, returning, shared
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.case import Arrays

CASES = ("dlrmv3_tiny", "dlrmv3_tiny_plain")
MODEL = load_case("dlrmv3_tiny").model
HISTORY, CANDIDATE_ROWS = 7, 3


def request() -> Arrays:
    """One request, with numbers of rows in place of rows of tables, and padding behind its rows."""
    rng = np.random.default_rng(0)
    h, t, c = MODEL.max_uih_len, MODEL.max_num_candidates, MODEL.contextual_seq_len
    wide = dict.fromkeys((*UIH, ACTIONS), (1, h)) | dict.fromkeys(CANDIDATES, (1, t))
    arrays = {name: rng.integers(1, 1000, shape) for name, shape in (wide | {CONTEXT: (1, c)}).items()}
    return arrays | {"uih_lengths": np.array([HISTORY]), "num_candidates": np.array([CANDIDATE_ROWS])}


def key(arrays: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in shared(arrays, MODEL).items()}


def changed(name: str, place: int | None) -> Arrays:
    arrays = request()
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1)[place or 0] += 1
    return arrays


# By input: places that enter the history's rows, and others.
PLACES = {
    "uih_lengths": ([0], []),
    "num_candidates": ([0], []),
    **{name: ([0, HISTORY - 1], [HISTORY, -1]) for name in (*UIH, ACTIONS)},
    **{name: ([], range(MODEL.max_num_candidates)) for name in CANDIDATES[:2]},
    "query_times": ([CANDIDATE_ROWS - 1], [0, 1, CANDIDATE_ROWS, -1]),
    CONTEXT: (range(MODEL.contextual_seq_len), []),
}


class TestTheKey:
    def test_the_table_has_all_inputs(self):
        case = load_case("dlrmv3_tiny")
        assert PLACES.keys() == case.make_inputs().inputs[0].arrays.keys() == request().keys()

    @pytest.mark.parametrize(
        ("name", "place"), [(name, place) for name, (own, _) in PLACES.items() for place in own]
    )
    def test_an_input_of_the_history_s_rows_changes_it(self, name, place):
        assert key(changed(name, place)) != key(request())

    @pytest.mark.parametrize(
        ("name", "place"), [(name, place) for name, (_, other) in PLACES.items() for place in other]
    )
    def test_candidates_and_padding_do_not(self, name, place):
        assert key(changed(name, place)) == key(request())

    def test_more_candidates_in_the_same_second_do_not(self):
        more = {**request(), "num_candidates": np.array([CANDIDATE_ROWS + 1])}
        more["query_times"] = np.full_like(
            more["query_times"], request()["query_times"][0, CANDIDATE_ROWS - 1]
        )
        assert key(more) == key(request())

    def test_rows_enough_for_a_contextual_feature_change_it(self):
        (least, _) = MODEL.contextual_min_seq_lengths
        few = {**request(), "uih_lengths": np.array([least - 2])}
        one, two = ({**few, "num_candidates": np.array([count])} for count in (1, 2))
        # The same last query time in both.
        for arrays in (one, two):
            arrays["query_times"] = np.full_like(arrays["query_times"], 9)
        assert {name for name in key(one) if key(one)[name] != key(two)[name]} == {HAS_CONTEXT}

    @pytest.mark.parametrize(
        ("history", "candidates", "place"), [(7, 0, ("uih_timestamps", 6)), (0, 2, ("query_times", 1))]
    )
    def test_the_query_s_time_is_that_of_the_last_row(self, history, candidates, place):
        lengths = {"uih_lengths": np.array([history]), "num_candidates": np.array([candidates])}
        arrays = request() | lengths
        name, row = place
        assert shared(arrays, MODEL)[QUERY_TIME] == arrays[name][0, row]

    def test_a_request_without_rows_has_no_time(self):
        none = {"uih_lengths": np.array([0]), "num_candidates": np.array([0])}
        assert shared(request() | none, MODEL)[QUERY_TIME] == 0


@pytest.mark.parametrize("name", CASES)
class TestReturningRequests:
    COUNT = 12

    @pytest.fixture
    def drawn(self, name):
        return load_case(name).serving().draw(self.COUNT, 0)

    @pytest.fixture
    def both(self, name, drawn):
        model = load_case(name).model
        grown = returning(drawn, model)
        inputs = {**grown.arrays, **grown.ids}
        keys = shared(inputs, model)
        return grown, [
            {part: array[number].tobytes() for part, array in keys.items()}
            for number in range(len(inputs["uih_lengths"]))
        ]

    def test_drawn_ones_come_first_and_are_unchanged(self, drawn, both):
        for part in ("arrays", "ids"):
            for name, array in getattr(drawn, part).items():
                assert np.array_equal(array, getattr(both[0], part)[name][: self.COUNT])

    def test_each_comes_again_with_other_candidates(self, both):
        grown, keys = both
        for number in range(self.COUNT):
            again = self.COUNT + number
            assert keys[again] == keys[number]
            assert not np.array_equal(
                grown.ids["candidate_embeddings"][again], grown.ids["candidate_embeddings"][number]
            )

    def test_each_other_one_differs_from_one_request_in_one_input(self, name, both):
        grown, keys = both
        parts = []
        for number in range(2 * self.COUNT, len(keys)):
            different = (
                {part for part in keys[number] if keys[number][part] != keys[other][part]}
                for other in range(self.COUNT)
            )
            parts.append(min(different, key=len))
        # A shorter history clears a row of each of its inputs.
        assert {"uih_lengths", *UIH} <= parts[0]
        singles = [*UIH[:2], UIH[2]]
        singles += [ACTIONS, CONTEXT] if name == "dlrmv3_tiny" else []
        assert [part for one in parts[1:] for part in one] == [*singles, QUERY_TIME]

    def test_they_are_requests_of_the_case(self, name, both):
        case = load_case(name)
        case.validate(case.serving().padded(both[0].arrays, case.serving().widths[-1]))
        assert FRESH < both[0].arrays.keys()

    def test_padding_is_zero_and_has_no_number(self, both):
        grown, _ = both
        for name, lengths in {
            **dict.fromkeys(UIH, "uih_lengths"),
            **dict.fromkeys(CANDIDATES, "num_candidates"),
        }.items():
            array = grown.arrays[name]
            padding = np.arange(array.shape[1]) >= grown.arrays[lengths][:, None]
            assert not array[padding].any()
            assert name not in grown.ids or (grown.ids[name][padding] == -1).all()


def test_few_candidates_leave_a_contextual_feature_out():
    case = load_case("dlrmv3_tiny")
    drawn = case.serving().draw(12, 0)
    (least, _) = MODEL.contextual_min_seq_lengths
    drawn.arrays["uih_lengths"][3] = least - 2
    drawn.arrays["num_candidates"][3] = 4
    grown = returning(drawn, MODEL)
    assert grown.arrays["num_candidates"][-1] == 1
    flags = shared({**grown.arrays, **grown.ids}, MODEL)[HAS_CONTEXT]
    assert (flags[-1] != flags[3]).any()


def test_one_request_returns_with_its_own_candidates():
    drawn = load_case("dlrmv3_tiny").serving().draw(1, 0)
    grown = returning(drawn, MODEL)
    assert np.array_equal(grown.arrays["candidate_embeddings"][0], grown.arrays["candidate_embeddings"][1])


def test_a_case_without_a_cache_is_refused(monkeypatch):
    from parity.case.serving import Serving

    serving = load_case("dlrmv3_tiny").serving()
    for method in (Serving.shared, Serving.returning):
        with pytest.raises(UserError, match="--kv-cache: on is for cases with a k/v cache"):
            method(serving, {})
