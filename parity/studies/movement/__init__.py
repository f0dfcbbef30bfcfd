"""Two saved runs of the same weights and inputs: which module's result moved, and what rounding explains.

`runs` opens and matches them, `sides` has the results of a batch, `judging` the movements of every runner,
`report` their typed data, `terminal` and `markdown` their forms, `command` is the whole study.
"""
