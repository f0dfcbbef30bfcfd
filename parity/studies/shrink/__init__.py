"""A failing module or model as a folder that shows the failure without this project's harness.

    python run_parity.py shrink FOLDER --case CASE --precision PRECISION

search       the smallest case whose module or output still fails
write        a folder with its inputs, the weights, the oracle's result, the port's code and `reproduce`
reproduce    the program of the folder
"""

from parity.studies.shrink.search import Failure, shrink
from parity.studies.shrink.write import write

__all__ = ["Failure", "shrink", "write"]
