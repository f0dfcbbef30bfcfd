#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the verbs."""

import sys
from pathlib import Path

# Python leaves the script's folder out with PYTHONSAFEPATH.
if (folder := str(Path(__file__).resolve().parent)) not in sys.path:
    sys.path.insert(0, folder)

if __name__ == "__main__":
    from parity.base.interruption import watch
    from parity.base.memory import require_least
    from parity.base.supervision import supervised

    with supervised():
        # Before the imports below: they take a moment, and memory.
        watch()
        require_least()
        from cases.registry import SHIPPED
        from parity.cli.program import as_process, program

        as_process(program(SHIPPED))

elif __name__ != "__mp_main__":  # processes of runners import this file too, and need no command line
    from cases.registry import SHIPPED
    from parity.cli.program import program

    main = program(SHIPPED)
