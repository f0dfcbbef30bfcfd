"""Names of taps: the one grammar of the keys under which runners save tensors.

A tap is named by the path of its module, so that both sides agree on names and no tensor is ever matched by
its position:

    blocks.0.attention                     the only tensor that the module returns
    preprocessor[1]                        the second of several; a dictionary's tensor has its key there
    embedding@1                            the second call of a module that is called more than once
    score.encoded                          an output of the model's entry point
    blocks.0(mask)                         an argument that a call receives, by its parameter
    score(payloads.timestamps)             an input of the entry point
    append:blocks                          the module while one item is appended to a cache
    rounding_samples:blocks                (K, ...) results of the oracle under random rounding errors
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from enum import Enum

_SAMPLES = "rounding_samples:"


class Phase(str, Enum):
    """The forward in which a module is called; the value begins the tap's name."""

    FORWARD = ""
    APPENDING = "append:"
    """One item is appended to a cache."""


_NAME = re.compile(
    rf"(?P<samples>{_SAMPLES})?(?P<phase>{Phase.APPENDING.value})?"
    r"(?P<path>[^@\[(:]*)(?:@(?P<call>[1-9]\d*))?(?:\((?P<argument>.+)\)|(?P<output>\[.*\]))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class TapName:
    """The name of a tap in its parts; `str` of it is the key in files and reports.

    Attributes:
        path: Path of the module in the model, or `entry.name` of an output of the entry point.
        call: Number of earlier calls of the module in the same forward.
        output: Place of the tensor in the module's result, as `[1]` or `[0][past]`; empty for the result.
        argument: Path of an argument of the call, its parameter first; empty for a result.
        phase: The forward of the call.
        samples: Whether the tensor holds the oracle's rounding samples of the tap.
    """

    path: str
    call: int = 0
    output: str = ""
    argument: str = ""
    phase: Phase = Phase.FORWARD
    samples: bool = False

    def __str__(self) -> str:
        call = f"@{self.call}" if self.call else ""
        place = f"({self.argument})" if self.argument else self.output
        return f"{_SAMPLES if self.samples else ''}{self.phase.value}{self.path}{call}{place}"

    @classmethod
    @functools.lru_cache(maxsize=1 << 14)
    def parse(cls, text: str) -> TapName:
        """The parts of a name. Text outside the grammar, of a runner's extra tensor, is a path as a whole."""
        match = _NAME.fullmatch(text)
        if match is None:
            return cls(text)
        return cls(
            path=match["path"],
            call=int(match["call"] or 0),
            output=match["output"] or "",
            argument=match["argument"] or "",
            phase=Phase(match["phase"] or ""),
            samples=match["samples"] is not None,
        )

    @property
    def module_call(self) -> TapName:
        """The name of the call that returned or received the tensor."""
        return replace(self, output="", argument="", samples=False)

    @property
    def appends(self) -> bool:
        """Whether the tap is of the forward that appends an item to a cache."""
        return self.phase is Phase.APPENDING

    def appending(self) -> TapName:
        """The same tap in the forward that appends an item to a cache."""
        return replace(self, phase=Phase.APPENDING)

    def of_samples(self) -> TapName:
        """The name of the rounding samples of this tap."""
        return replace(self, samples=True)

    def of_tap(self) -> TapName:
        """The name of the tap that these rounding samples belong to."""
        return replace(self, samples=False)

    def is_output_of(self, entry: str) -> bool:
        """Whether the tap is an output of the entry point of this name."""
        return self.path.startswith(f"{entry}.")
