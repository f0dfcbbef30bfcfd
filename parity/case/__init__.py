"""The engine's interface to models: `Case` for one model, `CaseReference` for its name in other processes."""

import sys
from types import ModuleType
from typing import Any

from parity.case.loading import Listed, Registry, load_case
from parity.case.marking import mark
from parity.case.model import CallInForm, Case, Form, NoForm
from parity.case.options import Option
from parity.case.pair import ModelPair
from parity.case.pairing import From
from parity.case.plan import Arrays, Batches, PlannedBatch
from parity.case.quantised import Matrix
from parity.case.reference import CaseReference

__all__ = [
    "Arrays",
    "Batches",
    "CallInForm",
    "Case",
    "CaseReference",
    "Form",
    "From",
    "Listed",
    "Matrix",
    "ModelPair",
    "NoForm",
    "PlannedBatch",
    "Option",
    "Registry",
    "load_case",
]


class _Callable(ModuleType):
    """Makes `parity.case` the decorator of tests, too: `@parity.case`."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return mark(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable
