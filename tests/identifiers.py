"""Names of tests whose parameters are long: every report and each process's environment hold them."""

from __future__ import annotations

LONGEST = 200
"""Longest text of a parameter that stands whole in a test's name, in characters or bytes."""
SHOWN = 60


def pytest_make_parametrize_id(val: object) -> str | None:
    """The name of a long text; None leaves the name to pytest."""
    if not isinstance(val, (str, bytes)) or len(val) <= LONGEST:
        return None
    beginning = val if isinstance(val, str) else val[:SHOWN].decode("latin-1")
    return f"{beginning[:SHOWN].encode('unicode_escape').decode()}... of {len(val)}"


def shortened(value: object) -> str:
    """The text of a parameter, or its beginning and length: for `ids` of objects with long texts."""
    text = str(value)
    return pytest_make_parametrize_id(text) or text
