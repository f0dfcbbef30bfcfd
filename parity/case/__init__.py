"""The engine's interface to models: `Case` for one model, `CaseReference` for its name in other processes."""

from parity.case.model import Arrays, Batches, Case, Form, NoForm
from parity.case.reference import CaseReference, Listed, Registry

__all__ = ["Arrays", "Batches", "Case", "CaseReference", "Form", "Listed", "NoForm", "Registry"]
