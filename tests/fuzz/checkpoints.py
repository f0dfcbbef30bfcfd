"""Hostile checkpoints: safetensors and files of `torch.save`."""

from __future__ import annotations

import functools
import io
import json
import pickle
import zipfile
from typing import Any

import safetensors.torch
import torch
from hypothesis import strategies as st

from tests.fuzz.attempt import REFUSED, Attempt
from tests.fuzz.values import RAW_VALUES, changed_bytes, changed_documents

_CASE = "dlrm_tiny"


@functools.cache
def state_dict() -> dict[str, torch.Tensor]:
    """The initial weights of a small case."""
    from cases.shipped import load_case
    from parity.inputs.weights import case_weights

    return case_weights(load_case(_CASE))[0]


def _saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


@functools.cache
def whole() -> dict[str, bytes]:
    """Checkpoints that are right, by the form's name."""
    state = state_dict()
    return {
        "safetensors": safetensors.torch.save(state),
        "pt": _saved(state),
        "legacy": _saved(state, _use_new_zipfile_serialization=False),
        "trainer": _saved({"model_state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 1}),
    }


class _Hostile:
    """Runs code where a reader unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("open('pwned', 'w').close()",)


def _entries() -> tuple[Any, ...]:
    """Values in place of a tensor."""
    dense = torch.ones(4, 6)
    return (
        *(None, 1, "x", [dense], {"a": dense}, dense.numpy().tolist(), torch.float32, torch.Size([1])),
        *(dense.to_sparse(), dense.to_sparse_csr(), dense.to("meta"), torch.nn.Parameter(dense), dense.t()),
        *(torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8), dense.to(torch.complex64), dense.double()),
        *(
            dense.half(),
            dense.bfloat16(),
            dense.to(torch.float8_e4m3fn),
            dense.int(),
            dense.bool(),
            torch.tensor(1.0),
        ),
        *(torch.empty(0), torch.ones(0, 6), torch.ones(1).expand(1 << 40), torch.ones(1).expand(40, 6)),
        *(dense * float("nan"), dense * float("inf"), dense[::2], torch.nested.nested_tensor([dense])),
        *(dense.conj(), torch._neg_view(dense), torch.ones(40, 6, dtype=torch.uint16), _Hostile()),
    )


@st.composite
def _other_content(draw: st.DrawFn) -> bytes:
    """A file of `torch.save` with another object in it."""
    state: dict[Any, Any] = dict(state_dict())
    name = draw(st.sampled_from(sorted(state)))
    kind = draw(st.sampled_from(("entry", "entry", "entry", "key", "drop", "add", "whole", "nest")))
    entry = draw(st.sampled_from(_entries()))
    if kind == "entry":
        state[name] = entry
    elif kind == "key":
        state[
            draw(st.sampled_from((1, None, b"x", ("a",), "", "x" * 100_000, "a\0b", "\x1b[31m", "module.x")))
        ] = state.pop(name)
    elif kind == "drop":
        del state[name]
    elif kind == "add":
        state[draw(st.sampled_from(("x", "x" * 5000, "module.", "\n" * 20)))] = entry
    content: Any = state
    if kind == "whole":
        content = entry
    elif kind == "nest":
        content = {"model_state_dict": draw(st.sampled_from((state, entry, {"model_state_dict": state}, {})))}
    legacy = draw(st.integers(0, 4)) == 0
    try:
        return _saved(content, _use_new_zipfile_serialization=not legacy)
    except Exception:  # noqa: BLE001, some objects have no such form
        return pickle.dumps(None)


def _packed(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


@st.composite
def _other_header(draw: st.DrawFn) -> bytes:
    """Safetensors with another header."""
    content = whole()["safetensors"]
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = draw(
        st.sampled_from(("json", "json", "json", "offsets", "dtype", "shape", "length", "twice", "bytes"))
    )
    name = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    if kind == "json":
        text = draw(changed_documents(header, RAW_VALUES))
        return _packed(text.encode(errors="surrogatepass"), data)
    if kind == "offsets":
        header[name]["data_offsets"][draw(st.integers(0, 1))] = draw(
            st.sampled_from((-1, 0, 1, 8, 2**31, 2**63, 2**64 - 1, 2**64, len(data), len(data) + 1))
        )
    elif kind == "dtype":
        header[name]["dtype"] = draw(
            st.sampled_from(("F64", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F4", "C64", "X", ""))
        )
    elif kind == "shape":
        shapes = ([], [0], [-1], [2**63, 2**63], [2**32, 2**32, 4], [1] * 100, [240], [6, 40], [0, 2**62])
        header[name]["shape"] = draw(st.sampled_from(shapes))
    text = json.dumps(header).encode()
    if kind == "twice":
        entry = json.dumps(header[name])
        text = b"{" + f"{json.dumps(name)}: {entry}, ".encode() + text[1:]
    if kind == "length":
        length = draw(
            st.sampled_from(
                (0, 1, len(text) - 1, len(text) + 1, len(text) + len(data), 2**31, 2**40, 2**63, 2**64 - 1)
            )
        )
        return length.to_bytes(8, "little") + text + data
    if kind == "bytes":
        text = draw(changed_bytes(text))
    return _packed(text, data + draw(st.sampled_from((b"", b"\0", b"\0" * 8))))


@st.composite
def _other_archive(draw: st.DrawFn) -> bytes:
    """A file of `torch.save` whose archive has other members."""
    buffer = io.BytesIO()
    name = ""
    with zipfile.ZipFile(io.BytesIO(whole()["pt"])) as archive, zipfile.ZipFile(buffer, "w") as other:
        names = archive.namelist()
        name = draw(st.sampled_from(names))
        kind = draw(st.sampled_from(("drop", "change", "empty", "rename", "bomb", "pack", "twice")))
        for member in names:
            content = archive.read(member)
            target, packing = member, zipfile.ZIP_STORED
            if member == name:
                if kind == "drop":
                    continue
                if kind == "change":
                    content = draw(changed_bytes(content))
                elif kind == "empty":
                    content = b""
                elif kind == "rename":
                    target = draw(st.sampled_from(("../x", "/etc/x", "x" * 60_000, "archive/data.pkl")))
                elif kind == "bomb":
                    content, packing = bytes(1 << 27), zipfile.ZIP_DEFLATED
                elif kind == "pack":
                    packing = zipfile.ZIP_DEFLATED
                elif kind == "twice":
                    other.writestr(member, content)
            other.writestr(target, content, packing)
    return buffer.getvalue()


_FILES = (
    b"",
    b"{}",
    b"\x80",
    b"\x80\x02.",
    b"PK",
    b"PK\x05\x06" + bytes(18),
    b"x" * 100,
    bytes(9) + b"{",
    b"\x80\x02" + b"(" * 100_000,
)


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """A run with a hostile checkpoint."""
    files = whole()
    form = draw(st.sampled_from(("header", "content", "archive", "bytes", "bytes", "file")))
    codes = (0, 1, 2)
    if form == "header":
        content = draw(_other_header())
    elif form == "content":
        content = draw(_other_content())
    elif form == "archive":
        content = draw(_other_archive())
    elif form == "bytes":
        name = draw(st.sampled_from(sorted(files)))
        content = draw(changed_bytes(files[name]))
        if len(content) < len(files[name]) and name == "safetensors":
            codes = (REFUSED,)
    else:
        content = draw(st.sampled_from(_FILES))
    path = draw(st.sampled_from(("w.pt", "w.safetensors", "w")))
    return Attempt(
        ("run", "--case", _CASE, "--precision", "fp32", "--weights", path), {path: content}, codes=codes
    )
