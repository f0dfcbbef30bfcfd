"""The cheapest precision for each module of a port within an error budget at the model's outputs.

    units        modules that are lowered together -> what lowering each alone does to the outputs (measured)
    cost         bytes and FLOPs of each module -> seconds in each precision (modelled)
    knapsack     both -> the cheapest assignment, errors adding in squares (exact)
    search       that assignment on the port -> what the model of errors got wrong, repaired (measured)

Every error comes from the Tripy port with the casts in its graph, against the oracle on the weights and
inputs that fp32 holds: what storing them in less loses is counted.
"""
