"""Cases: one YAML file each beside this one, read into frozen, typed objects.

Both the reference and the port are built from what is read here, so a mistake in a file is reported
once, here, as a :class:`ConfigError` whose message has one line a problem: the field, its value, the fix.
"""

from configs.loading import ConfigError, list_cases, load_case, with_input
from configs.schema import CaseConfig, HSTUConfig, InputConfig

__all__ = [
    "CaseConfig",
    "ConfigError",
    "HSTUConfig",
    "InputConfig",
    "list_cases",
    "load_case",
    "with_input",
]
