"""Programming errors that ports really have, tried on the reference's module with its own inputs.

Each is a change of one operation or one argument of the module: another epsilon, a dropped bias, an exchanged
operand. A change is a cause if the changed module gives the port's result within the limit.
"""

from parity.verdict.causes.runs import Program, Run
from parity.verdict.causes.search import FITS, OtherResult, cause

__all__ = ["FITS", "OtherResult", "Program", "Run", "cause"]
