"""The cases that come with the project: every YAML file of `configs/` as a `parity.Case`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import configs
from cases.configured import ConfiguredCase, config_errors
from cases.dlrm.case import DLRMCase
from cases.dlrmv3.case import DLRMv3Case
from cases.hstu.case import HSTUCase
from cases.lecture_dlrm.case import LectureDLRMCase
from cases.stu.case import STUCase
from configs import CaseConfig

_CASES: dict[str, type[ConfiguredCase]] = {
    "dlrm": DLRMCase,
    "dlrmv3": DLRMv3Case,
    "hstu": HSTUCase,
    "lecture_dlrm": LectureDLRMCase,
    "stu": STUCase,
}


def from_config(config: CaseConfig) -> ConfiguredCase:
    """The case of a configuration."""
    return _CASES[config.family](config)


def from_values(**values: Any) -> ConfiguredCase:
    """The case of a configuration's plain values, as a `CaseReference` holds them.

    Raises:
        UserError: A value that the configuration refuses.
    """
    with config_errors():
        return from_config(configs.case_from_values(values))


def load_case(name_or_path: str | Path) -> ConfiguredCase:
    """A case by its name, or by the path of a YAML file.

    Raises:
        UserError: See `configs.load_case`.
    """
    with config_errors():
        return from_config(configs.load_case(name_or_path))


def list_cases() -> tuple[str, ...]:
    """Names of the cases, in alphabetical order."""
    return configs.list_cases()
