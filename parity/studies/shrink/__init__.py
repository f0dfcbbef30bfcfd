"""A failing module, or model, as a folder that shows the failure without this project's harness.

    python run_parity.py --shrink FOLDER --case CASE

`shrink` looks for the smallest case whose module, or output, still fails; `write` puts its inputs, the
weights, the oracle's result, the port's code and `reproduce.py` into the folder.
"""

from parity.studies.shrink.smallest import Failure, shrink
from parity.studies.shrink.write import write

__all__ = ["Failure", "shrink", "write"]
