"""Captures of calls that receive some arguments, for tests of arguments."""

from dataclasses import replace

import torch

from parity.capture.arguments import Argument, Received, with_value
from parity.capture.captures import Capture


def tensor(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def capture(*calls, tensors=()):
    """Calls as (name, values) or (name, values, facts); a value is a tensor, a constant or an object.

    Facts: `finished`, `longest`, `origins` by argument, and the names of `defaults`.
    """
    made = Capture(tensors=dict.fromkeys(tensors, torch.zeros(1)))
    for call, values, *facts in calls:
        facts = facts[0] if facts else {}
        received = []
        for place, (name, value) in enumerate(values.items()):
            plain = Argument(
                name,
                facts.get("places", {}).get(name, place),
                origin=facts.get("origins", {}).get(name, ""),
                is_default=name in facts.get("defaults", ()),
            )
            if isinstance(value, torch.Tensor):
                made.call_inputs[f"{call}({name})"] = value
                received.append(replace(plain, tensor=f"{call}({name})"))
            else:
                received.append(with_value(plain, value))
        made.arguments[call] = Received(
            "block", facts.get("finished", 0), facts.get("longest", 8), tuple(received)
        )
    return made
