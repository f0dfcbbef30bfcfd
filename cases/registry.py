"""The shipped cases as the command line offers them. Their names need no PyTorch."""

from __future__ import annotations

import configs
from parity.case import Case, Listed, Registry


def _listed() -> list[Listed]:
    loaded = map(configs.load_case, configs.list_cases())
    return [Listed(config.name, config.description, config.default) for config in loaded]


def _load(name: str) -> Case:
    from cases.shipped import load_case

    return load_case(name)


SHIPPED = Registry(cases=_listed, load=_load, module="cases.shipped")
