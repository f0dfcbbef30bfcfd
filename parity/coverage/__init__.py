"""The coverage of a port by inputs: questions, and the answers that the inputs gave.

A question is about a line, a branch, an outcome, a threshold, a size or an option; or about a bound of the
reference, which a port may have left out.

questions   a question about the port, all its answers, and the answers of a run
source      the port's Python modules, and changed code in them
places      comparisons, clamps and conditions in the source, and the source with a probe in each
probes      the values that reach the places, of Python and of traced tensors
bounds      clamps and comparisons of the reference while it runs
lines       lines and branches, measured by coverage.py
sizes       sizes of the axes of modules' arguments
options     choices of a case's options
"""
