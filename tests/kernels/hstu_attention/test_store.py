"""The store of searched schedules: one search a kind of call, and files that are no store."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from kernels.hstu_attention import (
    ProductionMask,
    ResearchMask,
    Schedule,
    ScheduleStore,
    call_kind,
    hstu_attention,
    store,
)
from kernels.hstu_attention.layout import Call
from tests.identifiers import shortened
from tests.kernels.marks import needs_gpu, needs_triton

CHOSEN = Schedule(32, 64, num_warps=4, num_stages=3, use_tma=True)
MASK = ProductionMask(0.2, 70.0)


def call_of(rows: int = 1000, sequences: int = 10, longest: int = 300, mask=MASK, heads: int = 2, **options):
    q = torch.zeros(rows, heads, 32, dtype=options.pop("dtype", torch.float16), **options)
    return Call(q, q, q, torch.zeros(sequences + 1, dtype=torch.int64), longest, mask)


@pytest.fixture
def searches(monkeypatch) -> list[str]:
    """The dot precision of each search; a search chooses `CHOSEN`."""
    found: list[str] = []

    def search_schedule(*call, dot_precision):
        found.append(dot_precision)
        return CHOSEN

    monkeypatch.setattr(store, "search_schedule", search_schedule)
    return found


def test_a_kind_of_call_is_searched_once_and_stored(tmp_path, searches):
    path = tmp_path / "schedules.json"
    first = ScheduleStore(path)
    assert [first.schedule(*call_of()) for _ in range(2)] == [CHOSEN, CHOSEN]
    assert ScheduleStore(path).schedule(*call_of(rows=1010)) == CHOSEN
    assert searches == ["ieee"]
    assert [x.name for x in tmp_path.iterdir()] == ["schedules.json"]


def test_stores_of_one_file_keep_each_others_entries(tmp_path, searches):
    path = tmp_path / "schedules.json"
    first, second = ScheduleStore(path), ScheduleStore(path)
    first.schedule(*call_of())
    second.schedule(*call_of(heads=4))
    again = ScheduleStore(path)
    for heads in (2, 4):
        again.schedule(*call_of(heads=heads))
    assert len(searches) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"rows": 2000},
        {"sequences": 20},
        {"longest": 600},
        {"heads": 4},
        {"dtype": torch.float32},
        {"mask": replace(MASK, max_attn_len=256)},
        {"mask": replace(MASK, contextual_seq_len=5)},
        {"mask": replace(MASK, num_targets=torch.zeros(10, dtype=torch.int64))},
        {"mask": replace(MASK, attn_scale=torch.zeros(1000))},
        {"mask": ResearchMask(torch.zeros(599), 300.0)},
    ],
    ids=shortened,
)
def test_another_kind_of_call_has_another_key(other):
    assert call_kind.key_of(call_of(), "ieee") != call_kind.key_of(call_of(**other), "ieee")


def test_times_precision_tensors_and_device_count(monkeypatch):
    weights = torch.zeros(599)
    timed = ResearchMask(weights, 300.0, torch.zeros(10, 300, dtype=torch.int64), torch.zeros(3))
    masks = ResearchMask(weights, 300.0), timed
    assert len({call_kind.key_of(call_of(mask=mask), "ieee") for mask in masks}) == 2
    call = call_of()
    keys = {call_kind.key_of(call, dot) for dot in ("ieee", "tf32")}
    wide = torch.zeros(1000, 2, 40, dtype=torch.float16)[..., :32]
    keys.add(call_kind.key_of(call._replace(k=wide), "ieee"))
    keys.add(call_kind.key_of(call._replace(q=wide), "ieee"))
    monkeypatch.setattr(call_kind, "device_facts", lambda _: {"device": "another GPU"})
    keys.add(call_kind.key_of(call, "ieee"))
    assert len(keys) == 5


def test_tiny_rows_count_by_themselves():
    # So many sequences fit a program.
    keys = {call_kind.key_of(call_of(rows=100, longest=longest), "ieee") for longest in (15, 16, 17, 64)}
    assert len(keys) == 4


def damaged(content: object) -> str:
    return json.dumps({"format": store.FORMAT, "schedules": content})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged, no JSON"),
        ('{"format"', "damaged, no JSON"),
        ("[" * 100_000, "damaged, no JSON"),
        ("[1]", "no store of schedules"),
        ('{"weights": 3}', "no store of schedules"),
        (json.dumps({"format": "kernels.hstu_attention schedules, 0", "schedules": {}}), "no store"),
        (json.dumps({"format": store.FORMAT}), "schedules is no object"),
        (damaged({"a": 3}), r"the entry 'a' has not the fields"),
        (damaged({"a": {"block_m": 16}}), r"the entry 'a' has not the fields"),
        (damaged({"a": asdict(CHOSEN) | {"more": 1}}), r"the entry 'a' has not the fields"),
        (damaged({"a": asdict(CHOSEN) | {"block_m": 48}}), r"the entry 'a': block_m=48: choose"),
        (
            damaged({"a": asdict(CHOSEN) | {"group": "16"}}),
            r"the entry 'a': group='16': use a whole number",
        ),
        (
            damaged({"a": asdict(CHOSEN) | {"group": [16]}}),
            r"the entry 'a': group=\[16\]: use a whole number",
        ),
    ],
)
def test_a_file_that_is_no_store_is_an_error_with_its_name_and_fix(tmp_path, text, message):
    path = tmp_path / "schedules.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        ScheduleStore(path)
    assert str(path) in str(error.value)
    assert "delete the file" in str(error.value)
    assert path.read_text() == text


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    path = tmp_path / "schedules.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="damaged, no JSON"):
        ScheduleStore(path)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="its folder is missing; create it"):
        ScheduleStore(tmp_path / "nowhere" / "schedules.json")


def test_a_file_damaged_meanwhile_is_not_overwritten(tmp_path, searches):
    path = tmp_path / "schedules.json"
    own = ScheduleStore(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        own.schedule(*call_of())
    assert path.read_text() == "{"


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(tmp_path, searches, monkeypatch):
    path = tmp_path / "schedules.json"
    own = ScheduleStore(path)
    own.schedule(*call_of())
    before = path.read_text()

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="no space"):
        own.schedule(*call_of(heads=4))
    assert path.read_text() == before
    assert [x.name for x in tmp_path.iterdir()] == ["schedules.json"]


def test_arguments_are_checked_before_the_store_is_asked(tmp_path, searches):
    call = call_of()
    with pytest.raises(ValueError, match=r"q\.shape=\(1000, 2\): must be \(L, H, K\)"):
        ScheduleStore(tmp_path / "schedules.json").schedule(*call._replace(q=call.q[..., 0]))
    with pytest.raises(ValueError, match=r"dot_precision='tf64'"):
        ScheduleStore(tmp_path / "schedules.json").schedule(*call, dot_precision="tf64")
    assert not searches


@needs_gpu
@needs_triton
def test_a_search_on_a_gpu_is_stored_with_its_device(tmp_path, monkeypatch):
    q, k, v = (torch.randn(700, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    call = Call(q, k, v, torch.tensor([0, 300, 700], device="cuda"), 400, MASK)
    schedule = ScheduleStore(tmp_path / "schedules.json").schedule(*call)
    assert torch.cuda.get_device_name() in (tmp_path / "schedules.json").read_text()
    monkeypatch.setattr(store, "search_schedule", None)
    assert ScheduleStore(tmp_path / "schedules.json").schedule(*call) == schedule
    assert torch.isfinite(hstu_attention(*call, schedule=schedule)).all()
