"""Executables: a folded program, its signature, and how to read and write it."""

from __future__ import annotations

from tripy_portable.ir.types import RankedTensorType
from tripy_portable.program import Program


class FunctionSignature:
    """Types of an executable function's arguments and results."""

    def __init__(self, arguments: list[RankedTensorType], results: list[RankedTensorType]):
        self._arguments = arguments
        self._results = results

    def get_num_args(self) -> int:
        return len(self._arguments)

    def get_num_input_args(self) -> int:
        return len(self._arguments)

    def get_num_output_args(self) -> int:
        return 0

    def get_num_results(self) -> int:
        return len(self._results)

    def get_arg(self, index: int) -> RankedTensorType:
        return self._arguments[index]

    def get_result(self, index: int) -> RankedTensorType:
        return self._results[index]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self._arguments))}) -> ({', '.join(map(str, self._results))})"


class Executable:
    """A compiled function, `main`. `Executable(bytes)` reads what `serialize` wrote.

    `recorded` is the program before folding, with source locations; a saved executable has none.
    """

    def __init__(self, buffer: bytes):
        self.program = Program.from_bytes(buffer)
        self.recorded: Program | None = None

    @classmethod
    def from_program(cls, program: Program, recorded: Program | None = None) -> Executable:
        """An executable of a folded program."""
        executable = cls.__new__(cls)
        executable.program = program
        executable.recorded = recorded
        return executable

    def serialize(self) -> bytes:
        """The executable's file format; see `program`."""
        return self.program.to_bytes()

    def get_signature(self, name: str) -> FunctionSignature:
        """The signature of a function; there is one, `main`."""
        if name != "main":
            raise KeyError(f"No function {name!r}: an executable has one, 'main'.")
        types = self.program.types
        return FunctionSignature(
            [types[v] for v in self.program.inputs], [types[v] for v in self.program.outputs]
        )

    def get_data_segments(self) -> list[tuple[str, bytes]]:
        """One segment: the serialized program. It is not a TensorRT engine, and starts with its own magic bytes."""
        return [("portable-program", self.serialize())]
