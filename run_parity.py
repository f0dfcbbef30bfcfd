#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the verbs."""

if __name__ == "__main__":
    from parity.base.interruption import watch
    from parity.base.memory import require_least

    # Before the imports below: they take a moment, and memory.
    watch()
    require_least()

if __name__ != "__mp_main__":  # processes of runners import this file too, and need no command line
    from cases.registry import SHIPPED
    from parity.cli.program import as_process, program

    main = program(SHIPPED)

if __name__ == "__main__":
    as_process(main)
