"""The exported reference through TensorRT by way of Polygraphy: the way of models without Tripy.

Beside the rows of the Tripy port it tells whether a difference, a refusal or a slow engine comes from Tripy
or from TensorRT. Engines are built on any machine, and run where TensorRT supports the GPU.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import tempfile
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx_ir as ir
import polygraphy
import polygraphy.config
import torch
from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from parity.base.precision import Precision
from parity.case import Case
from parity.runners.base import Arrays, BuildsEngines, BuiltOnly, Refused, Tensors, Unavailable
from parity.runners.onnx.base import OnnxRunner
from parity.runners.onnx.export import module_of, save_model, with_fixed_sizes


def _library() -> tuple[ModuleType | None, str]:
    """TensorRT itself, or TensorRT-RTX, without the portable stand-in; or the reason why there is none.

    `tripy_portable.trt.library` makes the same choice; a native environment does not have it.
    """
    reasons = []
    for name in ("tensorrt", "tensorrt_rtx"):
        try:
            library = importlib.import_module(name)
        except (ImportError, OSError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if getattr(library, "__portable__", False):
            reasons.append(f"{name}: the portable stand-in builds no engines")
            continue
        return library, ""
    return None, (
        f"no TensorRT library can be imported ({'; '.join(reasons)}); "
        "`pip install setuptools wheel && pip install --no-build-isolation tensorrt-rtx-cu13`"
    )


trt, _MISSING = _library()
# Polygraphy's TensorRT backend reads it when it is imported.
polygraphy.config.USE_TENSORRT_RTX = trt is not None and trt.__name__ == "tensorrt_rtx"
from polygraphy.backend.trt import (  # noqa: E402
    Profile,
    TrtRunner,
    create_config,
    engine_bytes_from_network,
    engine_from_bytes,
    network_from_onnx_path,
)

_LOGGER = logging.getLogger("Polygraphy")


@dataclass(frozen=True)
class _Build:
    """An engine of the builder, with facts about its build."""

    engine_bytes: bytes
    layers: int
    seconds: float
    log: list[str]


class _Recorded(logging.Handler):
    """The messages of Polygraphy and TensorRT while an engine is built."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # Polygraphy indents messages of TensorRT.
        text = textwrap.dedent(record.getMessage())
        self.lines.append(text)
        if record.levelno >= logging.ERROR and text not in self.errors:
            self.errors.append(text)

    def __enter__(self) -> _Recorded:
        G_LOGGER.use_python_logging_system = True
        G_LOGGER.letter = G_LOGGER.colors = False
        G_LOGGER.module_severity = G_LOGGER.EXTRA_VERBOSE
        _LOGGER.propagate = False
        _LOGGER.setLevel(1)
        _LOGGER.addHandler(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _LOGGER.removeHandler(self)


class _Engine:
    """A built graph that runs, named tensors in and out."""

    def __init__(self, engine: Any) -> None:
        self._runner = TrtRunner(engine)
        self._runner.activate()

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        results = self._runner.infer(self._wanted(tensors), check_inputs=False)
        return {name: torch.as_tensor(result).clone() for name, result in results.items()}

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        placed = {name: tensor.cuda() for name, tensor in self._wanted(tensors).items()}
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            self._runner.infer(placed, check_inputs=False, copy_outputs_to_host=False)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds

    def _wanted(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        wanted = self._runner.get_input_metadata()
        return {name: tensor.contiguous() for name, tensor in tensors.items() if name in wanted}


class TensorRTOnnxRunner(OnnxRunner, BuildsEngines):
    """The exported reference as TensorRT engines: the whole model, and each module alone."""

    def __init__(self) -> None:
        if trt is None:
            raise Unavailable(_MISSING)
        super().__init__()
        self._tf32 = False
        self._facts: dict[Any, list[dict]] = {}
        self._cannot_run = ""

    def label(self) -> str:
        return f"tensorrt_onnx ({trt.__name__} {trt.__version__})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if precision.needs_cuda and not torch.cuda.is_available():
            raise Unavailable(f"{precision.name} needs a CUDA device and none is visible")
        super().load(case, precision, weights)
        self._tf32 = precision.name == "tf32"
        self._facts = {}

    def build(self, arrays: Arrays, folder: Path) -> list[dict]:
        """Build the entry with dynamic sizes, and with static ones where engines run.

        Engines and listings are kept in `folder`, for the reason of `TensorRTRunner.build`.
        """
        tensors, smallest = self._inputs(arrays)
        shapes = self._fits(tensors)
        if shapes not in self._facts:
            _, exported = self._exported_for(arrays)
            dynamic = self._built(exported.plain(), tensors, smallest)
            facts = [self._keep("dynamic batch", dynamic, folder)]
            if not self._cannot_run:
                static = exported.plain()
                with_fixed_sizes(static, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
                facts.append(self._keep("static", self._built(static, tensors, {}), folder))
            self._facts[shapes] = facts
        return self._facts[shapes]

    def _keep(self, shape: str, built: _Build, folder: Path) -> dict:
        try:
            engine = self._on_device(built)
            count, dtypes, listing = _read_engine(engine)
        except BuiltOnly as reason:
            self._cannot_run = str(reason)
            count, dtypes, listing = _read_log(built.log)
        key = hashlib.sha256(built.engine_bytes).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{key}.engine").write_bytes(built.engine_bytes)
        facts = {
            "shape": shape,
            "library": f"{trt.__name__} {trt.__version__}",
            "layers": built.layers,
            "engine_layers": count,
            "bytes": len(built.engine_bytes),
            "seconds": built.seconds,
            "dtypes": dtypes,
            "key": key,
        }
        described = {**facts, "polygraphy": polygraphy.__version__, "inspector": listing}
        (folder / f"{key}.json").write_text(json.dumps(described, indent=1))
        return facts

    def _built(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> _Build:
        profile = Profile()
        for name in (value.name for value in model.graph.inputs):
            shape = tuple(tensors[name].shape)
            if name not in smallest:
                profile.add(name, min=shape, opt=shape, max=shape)
                continue
            # The largest size must not be 0.
            largest = (max(shape[0], smallest[name], 1), *shape[1:])
            profile.add(name, min=(smallest[name], *shape[1:]), opt=largest, max=largest)

        def config(builder: Any, network: Any) -> Any:
            verbosity = trt.ProfilingVerbosity.DETAILED
            return create_config(
                builder, network, profiles=[profile], tf32=self._tf32, profiling_verbosity=verbosity
            )

        with tempfile.TemporaryDirectory(prefix="parity-onnx-") as folder, _Recorded() as said:
            path = Path(folder) / "model.onnx"
            save_model(model, path)
            start = time.perf_counter()
            try:
                parts = network_from_onnx_path(str(path), strongly_typed=True)
                layers = parts[1].num_layers
                engine_bytes = bytes(engine_bytes_from_network(parts, config))
            except PolygraphyException as error:
                raise Refused(_refusal(model, said.errors or [str(error)])) from error
            return _Build(engine_bytes, layers, time.perf_counter() - start, said.lines)

    def _on_device(self, built: _Build) -> Any:
        """The engine, ready to run. Raises `BuiltOnly` where it cannot."""
        if not torch.cuda.is_available():
            raise BuiltOnly("PyTorch sees no CUDA device")
        with _Recorded() as said:
            try:
                return engine_from_bytes(built.engine_bytes)
            except PolygraphyException as error:
                name = torch.cuda.get_device_name()
                raise BuiltOnly(f"{name}: {(said.errors or [str(error)])[0]}") from error

    def _open(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> _Engine:
        if self._cannot_run:
            raise BuiltOnly(self._cannot_run)
        return _Engine(self._on_device(self._built(model, tensors, smallest)))

    def _fits(self, tensors: Tensors) -> tuple:
        return tuple(tuple(tensor.shape) for tensor in tensors.values())


def _refusal(model: ir.Model, errors: list[str]) -> str:
    """TensorRT's messages, and the module of the node that they name."""
    named = [node for node in model.graph if node.name and any(node.name in text for text in errors)]
    # A shorter name may be part of a longer one.
    node = max(named, key=lambda node: len(node.name or ""), default=None)
    where = f" in {node.op_type} ({node.name}) of module {module_of(node)}" if node is not None else ""
    return "\n".join([f"TensorRT refuses the ONNX graph{where}", *(f"  TensorRT: {text}" for text in errors)])


def _read_engine(engine: Any) -> tuple[int, list[str], Any]:
    """Layers, dtypes of inputs and outputs, and TensorRT's listing."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    dtypes = sorted({engine.get_tensor_dtype(name).name for name in names})
    inspector = engine.create_engine_inspector()
    listing = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    return engine.num_layers, dtypes, listing


def _read_log(log: list[str]) -> tuple[int, list[str], Any]:
    """The same from the builder's log, where the engine cannot be read without a GPU."""
    from tripy_portable.trt.inspector import dtypes, read_listing

    listing = read_listing(log)
    return len(listing["layers"]), dtypes(listing), listing
