"""The model between research HSTU and the production STU: equal to them at its ends, apart in between."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from cases.research_vs_production import __main__ as program
from cases.research_vs_production import measure as measuring
from cases.research_vs_production import render
from cases.research_vs_production.between import Between, rows_of
from cases.research_vs_production.differences import ALL, DIFFERENCES, OPTIONS
from cases.research_vs_production.made_equal import TARGETS, build_pair
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from tests.locations import ROOT

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("research_vs_production")

CANDIDATES = torch.arange(1, 2 * TARGETS + 1)


@pytest.fixture(scope="module")
def small():
    """A research model with room for targets, its weights, and requests of histories of several lengths."""
    case = load_case("hstu_tiny").with_input(batch_size=4)
    case = case.with_sizes({"model.max_output_len": TARGETS + 1})
    inputs = make_inputs(case).typical
    return case.model, case_weights(case)[0], rows_of(inputs.arrays)


@pytest.fixture(scope="module")
def result(small):
    config, weights, rows = small
    return measuring.measure(config, weights, [rows], CANDIDATES, lambda line: None)


def test_both_ends_are_the_references_to_round_off(result):
    assert 0 < result.start_error < 1e-13
    assert 0 < result.end_error < 1e-13


def test_the_last_cumulative_model_is_the_production_reference(small):
    config, weights, rows = small
    pair = build_pair(config, weights, seed=3)
    with torch.inference_mode():
        actual = Between(*pair, ALL).answer(rows, CANDIDATES).scores
        expected = measuring.production_scores(pair[1], rows, CANDIDATES)
    assert measuring.relative(actual, expected) < 1e-13


@pytest.mark.parametrize(
    ("option", "arguments"), [("window", {"max_attn_len": 6}), ("group_norm", {"use_group_norm": True})]
)
def test_an_option_is_the_production_references(small, option, arguments):
    config, weights, rows = small
    pair = build_pair(config, weights, seed=0, **arguments)
    with torch.inference_mode():
        actual = Between(*pair, ALL | {option}).answer(rows, CANDIDATES).scores
        expected = measuring.production_scores(pair[1], rows, CANDIDATES)
    assert measuring.relative(actual, expected) < 1e-13


def test_factors_of_rows_are_the_production_references(small):
    config, weights, rows = small
    pair = build_pair(config, weights, seed=0)
    request = rows.with_targets(CANDIDATES[:TARGETS]).trimmed()
    like = torch.zeros(*request.ids.shape, 1, dtype=torch.float64)
    with torch.inference_mode():
        actual = Between(*pair, ALL | {"attn_scale"}).answer(rows, CANDIDATES).scores[:, :TARGETS]
        factors = 1 / pair[1]._stu_module._valid_attn_mask(request.lengths, request.num_targets, like).sum(-1)
        states = pair[1](request.lengths, request.ids, request.timestamps, request.num_targets, factors)
        items = pair[1]._embedding_module.get_item_embeddings(CANDIDATES[:TARGETS])
    assert measuring.relative(actual, (states * items).sum(dim=-1)) < 1e-13


def test_shared_weights_are_equal_and_an_option_leaves_the_others_as_they_are(small):
    config, weights, _ = small
    (research, plain), (_, grouped) = (
        build_pair(config, weights, 0, use_group_norm=group) for group in (False, True)
    )
    shared = research.state_dict()["_hstu._attention_layers.1._uvqk"]
    assert torch.equal(plain.state_dict()["_stu_module._stu_layers.1._uvqk_weight"], shared)
    different = [
        name
        for name, value in plain.state_dict().items()
        if not torch.equal(value, grouped.state_dict()[name])
    ]
    assert len(different) == 2 * config.num_blocks
    assert all("_output_norm_" in name for name in different)


def test_every_difference_moves_the_output(result):
    for row in (*result.rows, *result.options):
        (distance,) = row.alone
        # Targets stand behind the history, which never sees them: they move the scores alone.
        moved = distance.states if "target" not in row.difference.name else 1.0 - distance.rank
        assert moved > 1e-6, row.difference.name


def test_candidates_leave_the_states_of_histories_alone(result):
    by_name = {row.difference.name: row.alone[0] for row in result.rows}
    assert by_name["targets"].states == 0.0
    assert by_name["target_mask"].states == 0.0


@pytest.mark.parametrize(
    ("step", "wrong", "named"),
    [
        ("_row_factors", lambda *_: torch.full((1, 1), 0.02, dtype=torch.float64), "research HSTU"),
        ("_mask", lambda self, rows, x: x.new_ones(1, x.size(1), x.size(1)).tril(), "the production STU"),
    ],
)
def test_an_end_that_is_not_the_reference_is_refused(small, monkeypatch, step, wrong, named):
    config, weights, rows = small
    monkeypatch.setattr(Between, step, wrong)
    with pytest.raises(measuring.EndsDiffer, match=named):
        measuring.measure(config, weights, [rows], CANDIDATES, lambda line: None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("concat_ua", True), ("normalization", "softmax_rel_bias"), ("max_output_len", TARGETS)],
)
def test_a_model_without_counterpart_is_refused(small, field, value):
    config, weights, _ = small
    with pytest.raises(UserError, match=field):
        build_pair(config.model_copy(update={field: value}), weights, 0)


def test_measures_of_rankings():
    scores = np.array([np.arange(40.0), np.arange(40.0)])
    assert measuring.top_overlap(scores, scores) == 1.0
    assert measuring.rank_correlation(scores, scores) == pytest.approx(1.0)
    assert measuring.top_overlap(scores, -scores) == 0.0
    assert measuring.rank_correlation(scores, -scores) == pytest.approx(-1.0)
    shifted = np.roll(scores, 5, axis=1)
    assert measuring.top_overlap(scores, shifted) == 0.5


def test_tables_have_a_line_for_each_difference_and_find_their_place(result):
    measured = render.tables(result, {"model": "small"})
    assert measured.count("\n| ") == len(DIFFERENCES) + len(OPTIONS) + 3
    begin, end = (render.marker("initial", entry) for entry in ("begin", "end"))
    document = f"above\n{begin}\nold\n{end}\nbelow\n"
    once = render.put_in(document, "initial", measured, "report.md")
    assert "old" not in once
    assert once.startswith("above\n")
    assert once.endswith("\nbelow\n")
    assert render.put_in(once, "initial", measured, "report.md") == once


BEGIN, END = (render.marker("trained", entry) for entry in ("begin", "end"))


@pytest.mark.parametrize("document", ["", f"{END}{BEGIN}", 2 * f"{BEGIN}{END}"])
def test_a_document_without_its_place_is_refused(document):
    with pytest.raises(UserError, match="--write"):
        render.put_in(document, "trained", "", "report.md")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--case", "dlrm_tiny"), "--case"),
        (("--candidates", "15"), "--candidates"),
        (("--write", "missing.md"), "missing.md"),
        (("--case", "nothing"), "nothing"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(program.main, arguments)
    assert ended.exit_code == program.BAD_INPUT
    assert ended.stderr.startswith("error: ")
    assert named in ended.stderr


def test_a_document_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "report.md"
    path.write_bytes("tables".encode("utf-16"))
    with pytest.raises(UserError, match=f"--write: {path} cannot be read or written"):
        program._write(path, "trained", "")


def test_a_full_disk_costs_no_document(tmp_path, monkeypatch):
    path, link = tmp_path / "report.md", tmp_path / "link.md"
    path.write_text(f"above {BEGIN}{END} below")
    link.symlink_to(path)
    before, write_text = path.read_text(), Path.write_text

    def full(self, text, **options):
        write_text(self, text[:20], **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"--write: .*\(No space left on device\)"):
        program._write(link, "trained", "new")
    assert path.read_text() == before
    monkeypatch.undo()
    program._write(link, "trained", "new")
    assert link.is_symlink()
    assert "new" in path.read_text()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_document_has_the_programs_tables():
    """The note has a line for every difference and option, in the program's words."""
    text = (ROOT / "benchmarks" / "results" / "research_vs_production.md").read_text()
    for weights in ("initial", "trained"):
        measured = text.partition(render.marker(weights, "begin"))[2].partition(
            render.marker(weights, "end")
        )[0]
        rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in measured.splitlines()]
        for difference in (*DIFFERENCES, *OPTIONS):
            assert (difference.research, difference.production) in rows
