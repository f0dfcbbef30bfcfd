"""The proof of the suite itself: one fault at a time in the port. Does the suite detect and localise it?

weight_faults   faults of every parameter
mutation        faults of every expression of the port's source; `source` applies them, `sites` places them
handwritten     faults by hand, from the catalogues of a case
bench           one case in one precision: its clean run and its faults
effects         the effect of an undetected fault: none, below the limit, or missed
trial           one fault, applied and judged
clean           runs without a fault, for false alarms
campaign        all faults and clean runs, on every core (`workers`), resumable (`store`)
table           the outcomes by operator
"""
