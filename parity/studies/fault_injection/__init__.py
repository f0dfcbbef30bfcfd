"""The proof of the suite itself: one fault at a time in the port. Does the suite detect and localise it?

faults          a fault, its outcome in a case, and its outcome in all cases
weight_faults   faults of every parameter
mutation        faults of every expression of the port's source; `sites` places them
handwritten     faults by hand, from the catalogues of a case
batch           one batch of a case in one precision: its clean run
bench           one case in one precision: its batches, its fuzzed set and its faults
effects         the effect of an undetected fault: none, below the limit, or missed
trial           one fault of the port, applied and judged on every batch
other_forms     faults in fused forms of the port and in streams
harness         one fault of the suite itself, by a right port and wrong ones
journeys        whole runs of a right port, with a copy of the suite that has a fault (`overlay`)
clean           runs without a fault, for false alarms
campaign        all faults and clean runs, on every core (`workers`), resumable (`store`)
table           the outcomes by operator
"""
