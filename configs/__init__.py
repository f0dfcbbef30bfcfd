"""Cases: one YAML file each beside this one, read into frozen, typed objects.

The reference and the port are both built from these objects. A mistake in a file raises a
:class:`ConfigError`. Its message has one line a problem: the field, its value, the fix.
"""

from configs.dlrm import DLRMConfig
from configs.dlrmv3 import DLRMv3Config
from configs.hstu import HSTUConfig
from configs.lecture_dlrm import LectureDLRMConfig
from configs.loading import ConfigError, case_from_values, list_cases, load_case, with_fields, with_input
from configs.quantisation import Scheme
from configs.schema import CaseConfig, DLRMv3CaseConfig
from configs.stu import STUConfig

__all__ = [
    "CaseConfig",
    "ConfigError",
    "DLRMConfig",
    "DLRMv3CaseConfig",
    "DLRMv3Config",
    "HSTUConfig",
    "LectureDLRMConfig",
    "STUConfig",
    "Scheme",
    "case_from_values",
    "list_cases",
    "load_case",
    "with_fields",
    "with_input",
]
