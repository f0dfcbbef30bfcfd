"""The suite's own proof: faults put into the port, one at a time; does the suite notice, and name the module?

weight_faults   faults of every parameter
mutation        faults of every expression of the port's source; `source` puts them in, `sites` says where
handwritten     faults that no operator makes
clean           runs without a fault, for false alarms
bench           a case in a precision: judged by what is made once, a fault re-runs what it can reach
effects         what a fault that nobody noticed does: nothing, too little to ask for, or something
campaign        all of it, on every core (`workers`), resumable (`store`)
table           what came out, by operator
"""
