#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the options.

Exit code: 0 all verdicts pass; 1 a verdict fails or a runner breaks; 2 bad input, or a requested runner is
unavailable.
"""

import sys

from parity.execution import fork_server

WITHOUT_RUNNERS = {"-h", "--help", "--list", "--replay", "--compare"}

if __name__ == "__main__" and not WITHOUT_RUNNERS.intersection(sys.argv):
    # It imports PyTorch while this process does.
    fork_server.start()

if __name__ != "__mp_main__":  # processes of runners import this file too, and need no command line
    from cases.shipped import SHIPPED
    from parity.cli.command import command

    main = command(SHIPPED)

if __name__ == "__main__":
    main()
