"""The cheapest precision for each module of a port within an error budget at the model's outputs.

    units        groups of modules -> the effect of lowering one group on the outputs (measured)
    cost         bytes and FLOPs of each module -> seconds in each precision (modelled)
    knapsack     both -> the cheapest assignment, with errors that add in squares (exact)
    search       the assignment on the port -> corrections of the model of errors (measured)

Every error is measured on the Tripy port with the casts in its graph, against the oracle on fp32 weights and
inputs. It therefore includes the loss of storing weights and inputs in a lower precision.
"""
