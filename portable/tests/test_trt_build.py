"""Engines from Tripy functions: profiles, dtypes, refusals at the user's line, keys, files."""

import dataclasses
import gc
import inspect
import json
import weakref
from concurrent.futures import ThreadPoolExecutor

import nvtripy as tp
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, tripy_from_torch

from tripy_portable import trt
from tripy_portable.dtypes import F16
from tripy_portable.ir.types import tensor_type
from tripy_portable.program import Program
from tripy_portable.trt import builder as builder_module
from tripy_portable.trt import library as libraries
from tripy_portable.trt.inspector import dtypes

reason = trt.available()
needs_library = pytest.mark.skipif(reason is not None, reason=reason or "")

SMALL = Shape(num_items=40, max_len=12, dim=8, heads=2, head_dim=4, blocks=1)


def program(function, *infos):
    # In a thread, whose stack is short: nvtripy records the whole stack of each operation, pytest's too.
    with ThreadPoolExecutor(1) as pool:
        return trt.program_of(pool.submit(tp.compile, function, args=list(infos)).result())


def bindings(built):
    return {binding["name"]: (binding["dtype"], binding["shape"]) for binding in built.inspector["bindings"]}


@needs_library
@pytest.mark.parametrize(
    ("dtype", "name"), [(tp.float32, "Float"), (tp.float16, "Half"), (tp.bfloat16, "BFloat16")], ids=str
)
@pytest.mark.parametrize("batch", [3, (1, 3, 8)], ids=["static", "dynamic"])
def test_hstu_builds_in_every_precision_static_and_dynamic(dtype, name, batch):
    model = tripy_from_torch(TorchHSTU(SMALL).eval(), dtype)
    infos = [tp.InputInfo((batch, 12), tp.int32), tp.InputInfo((batch, 12), tp.int64)]
    built = trt.build(program(model, *infos))
    extent = 3 if batch == 3 else -1
    assert bindings(built) == {
        "arg0": ("Int32", [extent, 12]),
        "arg1": ("Int64", [extent, 12]),
        "result0": (name, [extent, 12, 8]),
    }
    # Strongly typed: the weights' dtype is one that the engine computes in.
    assert name in dtypes(built.inspector)
    assert built.layers > 100
    assert built.engine_layers > 0
    assert built.size == len(built.engine_bytes) > 1000
    assert not [message for message in built.messages if message.is_error]


@needs_library
def test_profiles_reach_the_engine():
    def function(x, rows):
        return tp.reshape(x, (rows, -1)) * 2.0

    built = trt.build(
        program(function, tp.InputInfo(((2, 4, 6), 3), tp.float32), tp.DimensionInputInfo((1, 2, 6)))
    )
    listing = built.inspector["text"]
    assert "MinShape: [2,3], OptShape: [4,3], MaxShape: [6,3]" in listing
    assert next(b for b in built.inspector["bindings"] if b["name"] == "arg1")["location"] == "Host"


@needs_library
def test_results_that_are_inputs_constants_or_each_other():
    def function(x):
        y = x + 1.0
        return x, y, y, tp.ones((2,))

    built = trt.build(program(function, tp.InputInfo((2,), tp.float32)))
    assert sorted(bindings(built)) == ["arg0", "result0", "result1", "result2", "result3"]


@needs_library
def test_layers_lead_back_to_the_users_line():
    def function(x):
        return tp.softmax(x, dim=-1)

    line = inspect.getsourcelines(function)[1] + 1
    built = trt.build(program(function, tp.InputInfo((2, 3), tp.float32)))
    metadata = [part for layer in built.inspector["layers"] for part in layer["metadata"]]
    assert any(part.endswith(f"test_trt_build.py:{line}") for part in metadata)
    assert not any("/" in part for part in metadata)


@needs_library
def test_a_refusal_names_the_users_line_and_tensorrts_reason():
    def function(x):
        doubled = x + x
        return tp.topk(doubled, 4000, dim=1)[0]

    line = inspect.getsourcelines(function)[1] + 2
    with pytest.raises(trt.Refused) as refused:
        trt.build(program(function, tp.InputInfo((2, 5000), tp.float32)))
    text = str(refused.value)
    assert f"your line: {__file__}:{line} in function" in text
    assert "tensorrt.top_k" in text
    assert "Invalid TopK K: 4000" in text
    assert refused.value.located.user_line == f"{__file__}:{line} in function"


@needs_library
def test_a_refusal_that_comes_while_building_names_the_users_line():
    def function(x):
        return tp.sigmoid(x)

    line = inspect.getsourcelines(function)[1] + 1
    with pytest.raises(trt.Refused, match="Could not infer output types") as refused:
        trt.build(program(function, tp.InputInfo((2, 3), tp.int8)))
    assert refused.value.located.user_line == f"{__file__}:{line} in function"


@needs_library
def test_another_dtype_than_tripys_is_refused():
    recorded = program(lambda x: x * x, tp.InputInfo((2,), tp.float32))
    result = recorded.nodes[-1].outputs[0]
    wrong = list(recorded.types)
    wrong[result] = tensor_type(wrong[result].dims, F16)
    with pytest.raises(trt.Refused, match="TensorRT infers FLOAT of rank 1, Tripy says tensor<.*f16>"):
        trt.build(dataclasses.replace(recorded, types=wrong))


@needs_library
def test_weights_stay_until_the_engine_is_built(monkeypatch):
    # The translation casts nothing, so that its buffers are the program's tensors or copies of them.
    weight = torch.arange(12.0).reshape(3, 4)
    recorded = program(lambda x: x @ tp.Tensor(weight), tp.InputInfo((2, 3), tp.float32))
    expected = trt.build(recorded).engine_bytes
    buffers = []

    class Watched(builder_module.Translation):
        def run(self):
            super().run()
            buffers.extend(weakref.ref(buffer) for buffer in self.buffers)
            # All other owners let go before TensorRT reads the weights.
            self.program.constants.clear()
            gc.collect()
            assert all(reference() is not None for reference in buffers)

    monkeypatch.setattr(builder_module, "Translation", Watched)
    monkeypatch.setattr(builder_module, "cache_key", lambda *_: "key")
    copied = dataclasses.replace(recorded, constants={v: t.clone() for v, t in recorded.constants.items()})
    assert trt.build(copied).size == len(expected)
    gc.collect()
    assert buffers
    assert all(reference() is None for reference in buffers)


def describe(monkeypatch, text):
    monkeypatch.setattr(libraries, "describe", lambda: text)


def make_program(scale=2.0, rows=(1, 2, 4), dtype=tp.float32, operation=tp.relu):
    weight = torch.full((3,), scale, dtype={tp.float32: torch.float32, tp.float16: torch.float16}[dtype])
    return program(lambda x: operation(x) * tp.Tensor(weight), tp.InputInfo((rows, 3), dtype))


@pytest.mark.parametrize(
    "change",
    [{"scale": 3.0}, {"rows": (1, 2, 8)}, {"rows": 2}, {"dtype": tp.float16}, {"operation": tp.tanh}],
    ids=["weights", "profile", "shape", "precision", "graph"],
)
def test_the_key_changes_with_the_program(change, monkeypatch):
    describe(monkeypatch, "tensorrt 1")
    key = trt.cache_key(make_program())
    assert trt.cache_key(make_program()) == key
    assert len(key) == 64
    assert trt.cache_key(make_program(**change)) != key


def test_the_key_changes_with_options_and_versions(monkeypatch):
    recorded = make_program()
    describe(monkeypatch, "tensorrt 1")
    keys = {
        trt.cache_key(recorded),
        trt.cache_key(recorded, trt.BuildOptions(tf32=True)),
        trt.cache_key(recorded, trt.BuildOptions(optimization_level=5)),
    }
    describe(monkeypatch, "tensorrt 2")
    keys.add(trt.cache_key(recorded))
    monkeypatch.setattr(builder_module.tripy_portable, "__version__", "0.0.0")
    keys.add(trt.cache_key(recorded))
    monkeypatch.setattr(builder_module, "TRANSLATION_VERSION", -1)
    keys.add(trt.cache_key(recorded))
    assert len(keys) == 6


def test_the_key_is_the_same_wherever_the_program_was_recorded(monkeypatch):
    describe(monkeypatch, "tensorrt 1")
    recorded = make_program()
    assert any(node.location is not None for node in recorded.nodes)
    assert trt.cache_key(Program.from_bytes(recorded.to_bytes())) == trt.cache_key(recorded)


@needs_library
def test_tf32_is_an_option_that_the_builder_gets():
    recorded = program(lambda x: x @ x, tp.InputInfo((4, 4), tp.float32))
    plain, rounded = trt.build(recorded), trt.build(recorded, trt.BuildOptions(tf32=True))
    assert plain.key != rounded.key
    assert plain.engine_bytes != rounded.engine_bytes


@needs_library
def test_a_saved_engine_lies_under_its_key_with_its_inspector(tmp_path):
    built = trt.build(make_program())
    path = built.save(tmp_path / "engines")
    assert path.name == f"{built.key}.engine"
    assert path.read_bytes() == built.engine_bytes
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["layers"] == built.layers
    assert facts["inspector"]["layers"][-1]["outputs"][0]["dtype"] == "Float"
    assert facts["library"] == built.library


@needs_library
def test_a_saved_executable_builds(tmp_path):
    executable = tp.compile(lambda x: tp.relu(x), args=[tp.InputInfo(((1, 2, 4), 3), tp.float32)])
    executable.save(str(tmp_path / "relu"))
    loaded = tp.Executable.load(str(tmp_path / "relu"))
    assert bindings(trt.build(trt.program_of(loaded)))["result0"] == ("Float", [-1, 3])


def test_a_program_is_asked_of_portable_executables_only():
    with pytest.raises(TypeError, match="was not compiled by the portable runtime"):
        trt.program_of(object())


def test_without_a_library_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(libraries, "LIBRARIES", ("tensorrt", "no_such_tensorrt"))
    assert "tensorrt: this is the portable stand-in" in trt.available()
    assert "no_such_tensorrt: No module named" in trt.available()
    with pytest.raises(trt.NoTensorRT, match="pip install"):
        trt.build(make_program())
