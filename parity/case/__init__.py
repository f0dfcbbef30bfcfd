"""The engine's interface to models: `Case` for one model, `CaseReference` for its name in other processes."""

from parity.case.loading import Listed, Registry, load_case
from parity.case.model import Case, Form, NoForm
from parity.case.options import Option
from parity.case.pair import ModelPair
from parity.case.pairing import From
from parity.case.plan import Arrays, Batches, PlannedBatch
from parity.case.reference import CaseReference

__all__ = [
    "Arrays",
    "Batches",
    "Case",
    "CaseReference",
    "Form",
    "From",
    "Listed",
    "ModelPair",
    "NoForm",
    "PlannedBatch",
    "Option",
    "Registry",
    "load_case",
]
