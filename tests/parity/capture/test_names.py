"""The grammar of tap names: both directions, and every part on its own."""

import pytest

from parity.capture.names import Phase, TapName

NAMES = {
    "_hstu._attention_layers.0._attn": TapName("_hstu._attention_layers.0._attn"),
    "_input_features_preproc[1]": TapName("_input_features_preproc", output="[1]"),
    "pair@1[2][sum]": TapName("pair", call=1, output="[2][sum]"),
    "score.encoded": TapName("score.encoded"),
    "blocks.0@1(payloads.ids)": TapName("blocks.0", call=1, argument="payloads.ids"),
    "score(past_ids)": TapName("score", argument="past_ids"),
    "append:_hstu@12": TapName("_hstu", call=12, phase=Phase.APPENDING),
    "rounding_samples:top_l.4": TapName("top_l.4", samples=True),
    "rounding_samples:append:_hstu@1[0]": TapName(
        "_hstu", call=1, output="[0]", phase=Phase.APPENDING, samples=True
    ),
}


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_a_name_and_its_text_are_the_same(text, name):
    assert TapName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text", ["a:b", "append", "a@0", "a@01", "a@", "a]b", "a[", "a[0]b", "", "a@1@2", "a()", "a(b"]
)
def test_any_other_text_is_a_path_and_stays_as_it_is(text):
    assert TapName.parse(text) == TapName(text)
    assert str(TapName.parse(text)) == text


def test_the_call_of_a_tap_has_no_output_and_no_samples():
    name = TapName.parse("rounding_samples:append:pair@1[2][sum]")
    assert str(name.module_call) == "append:pair@1"
    assert str(TapName.parse("pair@1(x)").module_call) == "pair@1"
    assert str(name.of_tap()) == "append:pair@1[2][sum]"
    assert name.of_tap().of_samples() == name


def test_only_the_phase_says_that_a_tap_appends():
    assert TapName.parse("append:_hstu").appends
    assert not TapName.parse("appends._hstu").appends
    assert TapName.parse("_hstu@1").appending() == TapName.parse("append:_hstu@1")


def test_outputs_of_the_entry_begin_with_its_name_and_a_dot():
    assert TapName.parse("score.encoded").is_output_of("score")
    assert not TapName.parse("scores.encoded").is_output_of("score")
    assert not TapName.parse("score").is_output_of("score")
