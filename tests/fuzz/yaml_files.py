"""Hostile YAML: cases of every family, and policies."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from configs import load_case
from tests.fuzz.attempt import Attempt
from tests.fuzz.values import NUMBERS, RAW_VALUES, changed_bytes, changed_documents

_CASES = (
    "dlrm_tiny",
    "dlrm_tiny_md",
    "dlrm_tiny_qr",
    "hstu_tiny",
    "hstu_tiny_rated",
    "stu_tiny",
    "dlrm_lecture_tiny",
)
_POLICIES = ({"*": "fp16"}, {"bot_l": "bf16", "top_l.*": "fp32"}, {"emb_l.0": "fp16", "*": "bf16"})
_MEGABYTE = "k" * (1 << 20)
_SYNTAX = (
    *(
        "*a",
        "&a [*a]",
        "&a {<<: *a}",
        "{<<: {a: 1}}",
        "&a [1, *a]",
        "!!python/object/apply:os.system [x]",
        "!x 1",
    ),
    *("!!binary aGk=", "!!binary '\x01'", "!!set {a}", "!!timestamp x", "!!float x", "!!int 1", "!!omap [a]"),
    *(
        "2024-13-45",
        "2001-02-30T99:99:99Z",
        "2001-01-01",
        "0x",
        "0xZZ",
        "0o9",
        "1:99:99",
        "0b2",
        "=",
        "<<",
        "~",
    ),
    *(
        "@x",
        "`x",
        "%x",
        "|\n  x",
        ">9\n x",
        "|0\n",
        "? x",
        "- x",
        "{a: b, a: c}",
        ".inf",
        "-.nan",
        ".5.",
        "1_000",
    ),
    *(
        "+1",
        "'x",
        '"\\xZZ"',
        '"\\0"',
        '"\\UFFFFFFFF"',
        '"\\ud800"',
        "a: b: c",
        "\t- x",
        "...",
        "---\nb: 1",
        "no",
        "NULL",
    ),
    *(
        "{? [a] : b}",
        "{? {a: 1} : b}",
        "[" * 40 + "]" * 40,
        "[" * 60 + "]" * 60,
        "{a: " * 60 + "1" + "}" * 60,
    ),
    *(
        "[" * 3000,
        "- " * 3000 + "x",
        f"{{{_MEGABYTE}: 1}}",
        f'"{_MEGABYTE}"',
        "0x" + "f" * 5000,
        "1e" + "9" * 400,
    ),
    *(
        "0b" + "1" * 40_000,
        "9" * 500_000,
        "-" + "9" * 5000,
        "1" + ":59" * 3000,
        "1" * 4299 + ".0",
        "[1, 2",
        "]",
    ),
)
_DOCUMENTS = (
    b"",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff\xfea\0",
    "name: x".encode("utf-16"),
    "name: x".encode("utf-32"),
    b"%YAML 9.9\n---\na: 1",
    b"%TAG ! x\n---\n!a b",
    b"--- a\n--- b\n",
    b"a: &x [1]\n" + b"".join(b"b%d: &y%d [*x, *x]\n" % (n, n) for n in range(50)),
    b"? " + _MEGABYTE.encode() + b"\n: 1\n",
    b"family: dlrm\n" * 3,
    b"".join(b"k%d: 1\n" % n for n in range(100_000)),
    b"family: dlrm\n" + b"".join(b"k%d: 1\n" % n for n in range(5000)),
    b"- " * 100_000,
    b"[" * 500_000,
    b"{" * 500_000,
    b"a" * (1 << 21),
    b"#" * (1 << 21),
    b"\n" * (1 << 20),
    b"family: " + b"x" * 900_000,
    b"family: [dlrm]\n",
    b"family: 1\n",
    b"family: " + b"9" * 5000 + b"\n",
)


def _text(document: object) -> str:
    """A document in YAML: JSON is YAML, with a line for each entry of the first two levels."""
    if not isinstance(document, dict):
        return json.dumps(document)
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            lines.append(f"{json.dumps(key)}:")
            lines += [f"  {json.dumps(inner)}: {json.dumps(entry)}" for inner, entry in value.items()]
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


@st.composite
def _with_syntax(draw: st.DrawFn, document: dict) -> bytes:
    """A document in which a value or a whole line has other syntax."""
    lines = _text(document).splitlines()
    for _ in range(draw(st.integers(1, 2))):
        number = draw(st.integers(0, len(lines) - 1))
        key = lines[number].partition(": ")[0].rstrip(":")
        syntax = draw(st.sampled_from(_SYNTAX) | st.sampled_from(NUMBERS) | st.sampled_from(RAW_VALUES))
        kind = draw(st.sampled_from(("value", "value", "value", "line", "key", "indent", "again")))
        if kind == "value":
            lines[number] = f"{key}: {syntax}"
        elif kind == "line":
            lines[number] = syntax
        elif kind == "key":
            lines[number] = f"{syntax}: 1"
        elif kind == "again":
            lines.insert(number, lines[number])
        else:
            lines[number] = draw(st.sampled_from((" ", "\t", "    "))) + lines[number]
    return ("\n".join(lines) + "\n").encode(errors="surrogatepass")


def _mutated(document: dict) -> st.SearchStrategy[bytes]:
    return st.one_of(
        _with_syntax(document),
        _with_syntax(document),
        changed_documents(document).map(lambda text: text.encode(errors="surrogatepass")),
        changed_bytes(_text(document).encode()),
        st.sampled_from(_DOCUMENTS),
    )


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """A case or a policy, given to a verb that reads it."""
    if draw(st.integers(0, 3)) == 0:
        content = draw(_mutated(draw(st.sampled_from(_POLICIES))))
        return Attempt(("precision", "--case", "dlrm_tiny", "--policy", "p.yaml"), {"p.yaml": content})
    case = load_case(draw(st.sampled_from(_CASES))).model_dump(mode="json")
    content = draw(_mutated(case))
    if draw(st.integers(0, 9)) == 0:
        arguments = ("train", "--case", "x.yaml", "--data", "none", "--out", "out")
    else:
        verb = draw(st.sampled_from(("run", "run", "run", "shrink", "stream")))
        arguments = (verb, *(("new",) if verb == "shrink" else ()), "--case", "x.yaml", "--precision", "fp32")
    return Attempt(arguments, {"x.yaml": content})
