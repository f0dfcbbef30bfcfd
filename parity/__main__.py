"""The installed program `parity`, over the cases that installed packages register."""

from __future__ import annotations

from parity.base.interruption import watch
from parity.base.memory import require_least
from parity.base.supervision import supervised


def installed() -> None:
    """Run the program as the whole of this process. The child imports what takes a moment, and memory."""
    with supervised():
        watch()
        require_least()
        from parity.cli.program import as_process, program
        from parity.cli.registered import REGISTERED

        as_process(program(REGISTERED))


if __name__ == "__main__":
    installed()
