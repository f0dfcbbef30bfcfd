"""Files of measured points: read and written."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from parity.timing.gpu import GPU
from perf_model.points import Point

SCHEMA = "perf_model.points/1"


@dataclass(frozen=True)
class Measured:
    """A point and its seconds of one launch: median, 10th and 90th percentile of `runs` replays."""

    point: Point
    median: float
    p10: float
    p90: float
    runs: int
    launches: int


@dataclass(frozen=True)
class Measurements:
    """The result of one run of `perf_model.measure.points`."""

    gpu: GPU
    environment: dict[str, str]
    measured: tuple[Measured, ...]

    def save(self, path: Path) -> None:
        """Write a JSON file with a line a point."""
        head = {"schema_version": SCHEMA, "gpu": self.gpu.model_dump(), "environment": self.environment}
        lines = ",\n".join(json.dumps(_line(measured)) for measured in self.measured)
        path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "points": [\n' + lines + "\n]}\n")


def _line(measured: Measured) -> dict:
    line = asdict(measured)
    line |= {name: float(f"{line[name]:.5g}") for name in ("median", "p10", "p90")}
    return {**line.pop("point"), **line}


def read_measurements(path: Path) -> Measurements:
    """Read a file of points. Raises `ValueError` with the file's name for another schema."""
    try:
        content = json.loads(path.read_text())
        if content["schema_version"] != SCHEMA:
            raise ValueError(f"schema_version is {content['schema_version']!r}, not {SCHEMA!r}")
        measured = tuple(_measured(line) for line in content["points"])
        return Measurements(GPU.model_validate(content["gpu"]), content["environment"], measured)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: holds no measured points ({error!r})") from error


def _measured(line: dict) -> Measured:
    sizes = {
        name: tuple(size) if isinstance(size, list) else size for name, size in line.pop("sizes").items()
    }
    return Measured(Point(line.pop("family"), line.pop("precision"), sizes), **line)
