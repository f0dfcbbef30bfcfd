"""Programming errors that ports really have, tried on the reference's module with its own inputs.

Each is a change of one operation or one argument of the module: another epsilon, a dropped bias, an exchanged
operand. A change is a cause if the changed module gives the port's result within the limit.

* `search`: `cause` tries all changes of a `Program`. It tells the one whose result is nearest to the port's.
* `runs`: a `Program` is the reference's code with one call's arguments. It runs as it is, lists changes of
  its operations, or runs with some of them.
* `overflow`: the operation whose numbers a type cannot hold, for NaN and Inf without such a change.
* `operations`: one call of a PyTorch operation, and a `Change` of it.

These families of changes are tried:

* `argument_changes`: the arguments of the call, of another type, shifted or exchanged.
* `parity.runners.oracle.exchanged_weights`: two weights or two modules in each other's place, or weights of
  another module.
* `changes`: the numbers, terms, axes and operands of one operation. `changes_of` also yields the next three.
* `exchanges`: another function, option or order of operands in place of the operation's own.
* `windows`: another padding, dilation or pooling.
* `signs_and_places`: the other sign, or right numbers at wrong places.
* `other_tensors`: an earlier tensor of the run in place of an operand or a result.
"""

from parity.verdict.causes.overflow import overflow
from parity.verdict.causes.runs import Program, Run
from parity.verdict.causes.search import FITS, OtherResult, cause

__all__ = ["FITS", "OtherResult", "Program", "Run", "cause", "overflow"]
