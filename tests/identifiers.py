"""Names of tests whose parameters are long: every report and each process's environment hold them."""

from __future__ import annotations

LONGEST = 200
"""Longest text of a parameter that stands whole in a test's name, in characters or bytes."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """The beginning of a long text and its length; None leaves the name to pytest."""
    if not isinstance(val, (str, bytes)) or len(val) <= LONGEST:
        return None
    beginning = val[:20] if isinstance(val, str) else val[:20].decode("latin-1")
    return f"{beginning.encode('unicode_escape').decode()}... of {len(val)}"
