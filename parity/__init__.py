"""The harness: case -> inputs + weights -> runners -> captures -> comparison -> verdict -> report."""
