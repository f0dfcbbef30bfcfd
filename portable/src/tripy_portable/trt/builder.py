"""Builds an engine from a recorded program, with or without a GPU."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import tripy_portable
from tripy_portable.ir.types import tensor_type
from tripy_portable.program import Bounds, Program
from tripy_portable.trt import contraction, layout, pointwise  # noqa: F401  (importing registers converters)
from tripy_portable.trt import library as libraries
from tripy_portable.trt.inspector import read_listing
from tripy_portable.trt.messages import Message, Recorder, Refused
from tripy_portable.trt.network import Translation
from tripy_portable.trt.plugins import refuse_plugins

TRANSLATION_VERSION = 1
"""Version of the translation; increase it with every change, which invalidates cached engines."""


@dataclass(frozen=True)
class BuildOptions:
    """Options of TensorRT's builder.

    Attributes:
        tf32: whether float32 matrix products may round their factors to TF32, on GPUs that have it.
        optimization_level: 0 builds fastest, 5 searches longest.
    """

    tf32: bool = False
    optimization_level: int = 3


@dataclass(frozen=True)
class EngineBuild:
    """An engine and its description.

    Attributes:
        engine_bytes: the serialized engine.
        layers: number of layers of the network.
        engine_layers: number of layers of the engine.
        seconds: seconds of translating and building, without recording.
        inspector: the engine's layers with the dtype of each tensor; see `inspector.read_listing`.
        messages: TensorRT's errors and warnings, with the operation and the user's line if known.
        key: see `cache_key`.
        library: name and version of the TensorRT that built it.
    """

    engine_bytes: bytes = field(repr=False)
    layers: int
    engine_layers: int
    seconds: float
    inspector: dict[str, Any] = field(repr=False)
    messages: tuple[Message, ...]
    key: str
    library: str

    @property
    def size(self) -> int:
        """Bytes of the serialized engine."""
        return len(self.engine_bytes)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes `<key>.engine`, and `<key>.json` with all other fields.

        Args:
            folder: folder to write to, created if missing.

        Returns:
            The engine's path.
        """
        path = Path(folder) / f"{self.key}.engine"
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "library": self.library,
            "layers": self.layers,
            "engine_layers": self.engine_layers,
            "size": self.size,
            "seconds": self.seconds,
            "messages": [asdict(message) for message in self.messages],
            "inspector": self.inspector,
        }
        path.with_suffix(".json").write_text(json.dumps(facts, indent=1))
        path.write_bytes(self.engine_bytes)
        return path


def program_of(executable: Any) -> Program:
    """The recorded program of an executable: the graph for TensorRT.

    Args:
        executable: result of `nvtripy.compile` or `nvtripy.Executable.load`. A saved executable has the
            folded program and the innermost line of each location only.

    Raises:
        TypeError: the executable is not the portable runtime's.
    """
    inner = getattr(executable, "_executable", executable)
    program = getattr(inner, "recorded", None) or getattr(inner, "program", None)
    if not isinstance(program, Program):
        raise TypeError(
            f"{type(executable).__name__} was not compiled by the portable runtime; compile with nvtripy on "
            "tripy-portable"
        )
    return program


def at_typical_shapes(program: Program) -> Program:
    """The program with every unknown extent of its inputs fixed at the typical one. Dimension inputs stay."""
    types, specs = list(program.types), []
    for value, spec in zip(program.inputs, program.specs):
        if spec.shape_bounds is not None:
            dims = spec.shape_bounds.opt
            types[value] = tensor_type(dims, types[value].element)
            spec = replace(spec, shape_bounds=Bounds(dims, dims, dims), dimension_names={})
        specs.append(spec)
    return replace(program, types=types, specs=specs)


def cache_key(program: Program, options: BuildOptions | None = None) -> str:
    """Hexadecimal SHA-256 over all inputs of an engine's build.

    The inputs are the weights' bytes, the graph without source lines, shapes, profiles, every value's dtype,
    the builder's options and the translation. The versions of TensorRT and of this package count as well.

    Raises:
        NoTensorRT: no TensorRT is present. Its version is part of the key.
    """
    digest = hashlib.sha256()
    facts = {
        "library": libraries.describe(),
        "tripy_portable": tripy_portable.__version__,
        "translation": TRANSLATION_VERSION,
        "options": asdict(options or BuildOptions()),
        "types": [[type.dims, type.element.code] for type in program.types],
        "inputs": program.inputs,
        "outputs": program.outputs,
        "specs": [asdict(spec) for spec in program.specs],
        "nodes": [[node.op, node.inputs, node.outputs, node.attrs] for node in program.nodes],
        "constants": [[value, list(tensor.shape)] for value, tensor in program.constants.items()],
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for tensor in program.constants.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def build(program: Program, options: BuildOptions | None = None) -> EngineBuild:
    """Builds an engine.

    Args:
        program: result of `program_of` or `Program.from_bytes`.
        options: options of the builder.

    Raises:
        NoTensorRT: there is no TensorRT library.
        NoPlugins: the graph calls plugins.
        Refused: TensorRT does not accept the graph; the error has its message and the user's line.
    """
    options = options or BuildOptions()
    library = libraries.load()
    refuse_plugins(program, libraries.describe())
    recorder = Recorder(library)
    start = time.perf_counter()
    builder = library.Builder(recorder.logger)
    translation = Translation(library, builder, recorder, program)
    translation.run()
    config = builder.create_builder_config()
    config.builder_optimization_level = options.optimization_level
    config.profiling_verbosity = library.ProfilingVerbosity.DETAILED
    (config.set_flag if options.tf32 else config.clear_flag)(library.BuilderFlag.TF32)
    translation.add_profile(builder, config)
    serialized = builder.build_serialized_network(translation.network, config)
    seconds = time.perf_counter() - start
    if serialized is None:
        raise Refused("TensorRT refuses the graph", recorder.messages)
    inspector = read_listing(recorder.verbose)
    return EngineBuild(
        engine_bytes=bytes(serialized),
        layers=translation.network.num_layers,
        engine_layers=len(inspector["layers"]),
        seconds=seconds,
        inspector=inspector,
        messages=recorder.messages,
        key=cache_key(program, options),
        library=libraries.describe(),
    )
