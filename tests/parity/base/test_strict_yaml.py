"""Strict YAML: values by YAML 1.2, and every refusal with its line and column."""

from __future__ import annotations

import math

import pytest

from parity.base.strict_yaml import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, YAMLProblem, parse_yaml

LAUGHS = "a: &a [ha, ha]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("", None),
        ("17", 17),
        ("0777", 777),
        ("1e-6", 1e-6),
        ("1.5", 1.5),
        (".inf", math.inf),
        ("12:30", "12:30"),
        ("2021-01-02", "2021-01-02"),
        ("1024-64-16", "1024-64-16"),
        ("'1'", "1"),
        ("[1, [a, {b: 2}]]", [1, ["a", {"b": 2}]]),
        ("&here 1", 1),
        ("\ufeffa: 1", {"a": 1}),
        ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("z: 1\na: 2\n", {"z": 1, "a": 2}),
    ],
)
def test_values_are_those_of_yaml_1_2(text, value):
    parsed = parse_yaml(text)
    assert (parsed, type(parsed)) == (value, type(value))
    if isinstance(value, dict):
        assert list(parsed) == list(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice, on lines 1 and 3; remove one"),
        ("- {b: 2, b: 3}", "line 1, column 10: key 'b' is given twice"),
        ("{1: a, '1': b}", "line 1, column 8: key '1' is given twice"),
        ("x: 1\n" + LAUGHS, "line 3, column 8: the alias \\*a is not allowed; write the value out"),
        ("a: 1\nb: !!python/object:os.system x", "line 2, column 4: the tag .*os.system is not allowed"),
        ('a: 1\nb: "\\UFFFFFFFF"', "line 2, column 5: .UFFFFFFFF is no character"),
        ("!!binary aGk=", "line 1, column 1: the tag .*binary is not allowed; remove it"),
        ("a: !mine {b: 1}", "line 1, column 4: the tag !mine is not allowed"),
        ("a: x\nb: y\0z", r"line 2, column 5: the character '.x00' is not allowed"),
        ("a:\n  - [1,\n  b: }", "line 3, column 6: .*found '}'"),
        ("a: 1\n---\nb: 2", "line 2, column 1: .*found another document"),
        ("a:\n  <<: {b: 1}\n  b: 2", "line 2, column 3: the merge << is not allowed; write the values out"),
        ("? [1, 2]\n: 3", "line 1, column 3: a key is a list or a mapping; give text"),
        ("a: " + "9" * 5000, r"line 1, column 4: '9{40}\.\.\.' is no number that can be read"),
        ("a: 0x" + "f" * 5000, r"line 1, column 4: '0xf{38}\.\.\.' is no number that can be read"),
    ],
)
def test_other_text_is_refused_with_its_place(text, message):
    with pytest.raises(YAMLProblem, match=message):
        parse_yaml(text)


def test_the_largest_depth_is_read():
    value = parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_text_without_bound_is_refused():
    with pytest.raises(YAMLProblem, match=f"has {MAX_CHARACTERS + 1} characters, more than {MAX_CHARACTERS}"):
        parse_yaml("x" * (MAX_CHARACTERS + 1))
    place = f"line 1, column {MAX_DEPTH + 2}: lists and mappings are nested more than {MAX_DEPTH} deep"
    with pytest.raises(YAMLProblem, match=place):
        parse_yaml("[" * 2000)
    assert len(parse_yaml(f"[{'1,' * (MAX_VALUES - 1)}]")) == MAX_VALUES - 1
    with pytest.raises(YAMLProblem, match=f"line 1, column 20000: there are more than {MAX_VALUES} keys and"):
        parse_yaml(f"[{'1,' * MAX_VALUES}]")
