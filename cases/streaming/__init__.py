"""Streams of items through a k/v cache, judged at every step against the full forward.

streams    a stream and its steps, and what a full forward over the whole of it gives
sides      reference and port, which hand on their state from step to step
judging    verdicts of every tensor of a step, and what a wrong cache holds
"""
