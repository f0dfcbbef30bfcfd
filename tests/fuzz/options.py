"""Hostile command lines: options of all verbs, and paths that verbs read or write."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.attempt import REFUSED, Attempt

_NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "7",
        "1e3",
        "1_000",
        "0x10",
        " 5",
        "5 ",
        "",
        "x",
        "nan",
        "inf",
        "-inf",
        "1.5",
        "\u0663",
    ),
    *("2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 40),
    *("9" * 5000, "1e999", "1e-999", "--", "-0", "+3", "True", "99999", "1000000000", "100000000000"),
)
_NAMES = (
    *(
        "",
        ",",
        ",,,",
        " ",
        "x",
        "dlrm_tiny",
        "dlrm_tiny,dlrm_tiny",
        "dlrm_tiny,hstu_tiny",
        "DLRM_TINY",
        "a" * 5000,
    ),
    *(
        "fp32",
        "fp16,bf16",
        "tf32",
        "fp8",
        "tripy",
        "torch",
        "tripy,oracle",
        "all",
        "\x1b[31m",
        "[bold]",
        "é",
        "a\nb",
    ),
    *(
        "../x",
        "/",
        "x.yaml",
        ".yaml",
        "/dev/null.yaml",
        "a/b",
        "c" * 300 + ".yaml",
        "os:system",
        "os.path",
        ":",
        "a:b",
    ),
    *(
        "cases.shipped:from_values",
        "parity.cli.new_case:case",
        "parity.cli.new_case:Reference",
        "json:loads",
        "this:x",
    ),
    *(
        ",".join(["x"] * 1000),
        "sys:exit",
        "parity:Case",
        "builtins:open",
        "builtins:print",
        "..:x",
        "a..b:c",
        "a:b:c",
    ),
    *(
        "parity.cli.new_case:case.__class__",
        "parity.cli.new_case:",
        "nope.nope:x",
        "mine:case",
        "broken:case",
    ),
)
_PATHS = (
    *(
        "none",
        "file",
        "full",
        "empty",
        "",
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/full",
        "/dev/stdin/x",
        "/proc/x",
        "/sys/x",
    ),
    *(
        "file/below",
        "empty/new",
        "a" * 300,
        "a/" * 2100,
        "link",
        "loop",
        "full/x",
        "\udcff",
        "a\nb",
        "\x1b[31m",
        "~nobody/x",
    ),
    *("dangling", "[bold]", "-", "/proc/self/mem", "/dev/zero", "pipe/none"),
)
_REFUSING = b"""import parity
class C(parity.Case):
    name = 'mine'
    def build_reference(self): raise parity.UserError('a', 'b', 'c', 'd')
    build_port = build_reference
    make_inputs = build_reference
case = C()
"""
_MODULES = {
    "mine.py": _REFUSING,
    "broken.py": b"case = None\n",
    "file": b"x",
    "full/x": b"x",
    "empty": None,
}
_KINDS = {
    "--batch": _NUMBERS,
    "--seed": _NUMBERS,
    "--time-limit": _NUMBERS,
    "--memory": _NUMBERS,
    "--budget": _NUMBERS,
    "--share": _NUMBERS,
}
_KINDS |= {"--clean-runs": _NUMBERS, "--steps": _NUMBERS, "--capacity": _NUMBERS, "--faults": _NAMES}
_KINDS |= {"--case": _NAMES, "--model": _NAMES, "--precision": _NAMES, "--runners": _NAMES}
_KINDS |= {"--samples": _NUMBERS, "--tokens": _NUMBERS, "--queries": _NUMBERS, "--rate": _NUMBERS}
_KINDS |= {"--kv-cache": _NUMBERS}
_KINDS |= {"--duration": _NUMBERS, "--scenario": (*_NAMES, "server", "offline"), "--tables": _PATHS}
_KINDS |= {"--data": _PATHS, "--weights": _PATHS, "--save": _PATHS, "--profile": _PATHS, "--policy": _PATHS}
_OF_VERB = {
    "run": (
        *("--case", "--model", "--precision", "--runners", "--batch", "--seed", "--data", "--weights"),
        *("--save", "--profile", "--time-limit", "--memory"),
    ),
    "shrink": ("--case", "--model", "--precision", "--seed"),
    "precision": (
        *("--case", "--model", "--batch", "--seed", "--data", "--weights", "--save", "--policy", "--budget"),
    ),
    "self-test": ("--case", "--model", "--precision", "--save", "--share", "--faults", "--clean-runs"),
    "stream": ("--case", "--model", "--precision", "--weights", "--seed", "--steps", "--capacity"),
    "serve": (
        *("--case", "--model", "--precision", "--weights", "--seed", "--save", "--scenario", "--samples"),
        *("--data", "--tables", "--tokens", "--kv-cache", "--rate", "--duration", "--queries"),
    ),
}  # fmt: skip
_PLAIN = {
    "run": ("--case", "dlrm_tiny", "--precision", "fp32"),
    "shrink": ("new", "--case", "dlrm_tiny", "--precision", "fp32"),
    "precision": ("--case", "dlrm_tiny"),
    "self-test": ("--case", "dlrm_tiny", "--precision", "fp32", "--clean-runs", "0"),
    "stream": ("--case", "hstu_tiny", "--precision", "fp32"),
    "serve": ("--case", "dlrmv3_tiny", "--precision", "fp32", "--samples", "3"),
}
_TAKEN = ("file", "full", "/", "/dev/null", "/dev/full", "file/below", "full/x", "/proc/x", "/sys/x")
"""Targets that a verb cannot write, or must not."""
_TRAIN = {"--epochs": _NUMBERS, "--patience": _NUMBERS, "--batch": _NUMBERS, "--seed": _NUMBERS}
_TRAIN |= {
    "--learning-rate": _NUMBERS,
    "--optimizer": _NAMES,
    "--case": _NAMES,
    "--out": _PATHS,
    "--data": _PATHS,
}


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """A command line with one to three hostile options."""
    verb = draw(
        st.sampled_from(
            (*_OF_VERB, "run", "train", "replay", "resume", "compare", "bisect", "new", "list", "other")
        )
    )
    if verb in ("replay", "resume", "compare", "bisect", "new"):
        values = draw(st.lists(st.sampled_from((*_PATHS, *_NAMES)), min_size=0, max_size=3))
        return Attempt((verb, *values), _MODULES)
    if verb == "other":
        words = draw(
            st.lists(st.sampled_from((*_NAMES, *_KINDS, *_OF_VERB, "--help", "-v", "--", "-")), max_size=3)
        )
        # Without an option the call is a plain run of all default cases, which takes long to prepare.
        return Attempt(("list", *words) if not words else tuple(words), _MODULES)
    if verb == "list":
        return Attempt((verb, draw(st.sampled_from(_NAMES))), _MODULES)
    if verb == "train":
        return draw(_trainings())
    plain = list(_PLAIN[verb])
    codes: tuple[int, ...] = (0, 1, 2)
    for name in draw(st.lists(st.sampled_from(_OF_VERB[verb]), min_size=1, max_size=3, unique=True)):
        value = draw(st.sampled_from(_KINDS[name]))
        if name in plain and draw(st.booleans()):
            plain[plain.index(name) + 1] = value
        else:
            plain += [name, value]
        if name in ("--save", "--profile") and value in _TAKEN:
            codes = (REFUSED,)
    if verb == "shrink" and draw(st.booleans()):
        plain[0] = draw(st.sampled_from(_PATHS))
        codes = (REFUSED,) if plain[0] in (*_TAKEN, "empty", ".", "..") else codes
    return Attempt((verb, *plain), _MODULES, codes=codes)


@st.composite
def _trainings(draw: st.DrawFn) -> Attempt:
    arguments = ["train", "--case", "hstu_tiny", "--data", "file", "--out", "out"]
    for name in draw(st.lists(st.sampled_from(sorted(_TRAIN)), min_size=1, max_size=2, unique=True)):
        arguments += [name, draw(st.sampled_from(_TRAIN[name]))]
    files = dict(_MODULES)
    if draw(st.booleans()):
        files["file"] = b"".join(b"1\t%d\t3\t%d\n" % (item, item) for item in range(1, 9))
    return Attempt(tuple(arguments), files)
