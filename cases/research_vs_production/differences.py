"""The differences between the two models, in the order in which they are turned on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One step that the models do differently.

    Attributes:
        name: Name in code and on the command line.
        research, production: Each model's form of the step.
        needs: Differences that this one requires.
    """

    name: str
    research: str
    production: str
    needs: tuple[str, ...] = ()


DIFFERENCES = (
    Difference("bias", "relative position and time bias on the logits", "none"),
    Difference("alpha", "q k^T as it is", "times 1 / sqrt(dqk)"),
    Difference("divisor", "the mask's width", "the call's longest sequence"),
    Difference("activation", "SiLU on u, v, q, k", "SiLU on u"),
    Difference("uvqk_bias", "no bias on u, v, q, k", "a bias"),
    Difference("input_norm", "input norm without weight and bias", "with"),
    Difference("output_norm", "norm of the attention without weight and bias", "with"),
    Difference("concatenation", "project u * LN(a)", "project [u, LN(a), u * LN(a)]"),
    Difference("raw_attention", "LN(a) beside u", "the raw a", ("concatenation",)),
    Difference("output_bias", "output projection with a bias", "without"),
    Difference("position", "positions counted from the left", "back from the history's end"),
    Difference("time", "no time in the input", "an embedding of sqrt(minutes) before the query"),
    Difference("targets", "the last state ranks all candidates", "each candidate is a row with its state"),
    Difference("target_mask", "candidates see those before them", "never each other", ("targets",)),
    Difference("postprocessor", "L2 norm", "linear layer with time of day and week, layer norm"),
)
#: Options of the production STU that the public ranking model leaves off.
OPTIONS = (
    Difference("window", "a row sees all the past", "the latest quarter of the longest history"),
    Difference("group_norm", "one norm over all heads", "a norm for each head, with one weight"),
    Difference("attn_scale", "one divisor", "each row divides by how many rows it sees"),
)
ALL = frozenset(difference.name for difference in DIFFERENCES)
