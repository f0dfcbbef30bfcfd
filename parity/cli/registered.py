"""The cases that installed packages register, as entry points of the group `parity.cases`.

The value of an entry point is the import path of a case.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from parity.base.errors import UserError, check_names
from parity.case import Case, CaseReference, Listed, Registry, load_case

_GROUP = "parity.cases"


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def _listed() -> Sequence[Listed]:
    """The cases, all of them default ones. Descriptions would take imports of the models."""
    return [Listed(name, point.value, True) for name, point in sorted(_points().items())]


def _load(name: str) -> Case:
    points = _points()
    if not points:
        raise UserError(
            "--case", name, "is not known: no installed package registers a case", "name yours with --model"
        )
    check_names("--case", [name], sorted(points))
    return load_case(CaseReference(target=points[name].value))


REGISTERED = Registry(cases=_listed, load=_load)
