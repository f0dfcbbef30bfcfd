"""Streams of items through a cache, judged at every step against the full forward.

truth      full forwards over a whole stream: float64, tested precision, and with random roundings
sides      reference and port, which hand their state from step to step
judging    verdicts of every tensor of a step, and the content of a wrong cache
command    the verb `stream`
"""
