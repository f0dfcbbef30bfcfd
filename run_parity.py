#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the options.

Exit code: 0 everything passes, 1 something diverges or breaks, 2 bad input or a runner that was asked
for and is unavailable.
"""

from cases.shipped import SHIPPED
from parity.cli.command import command

main = command(SHIPPED)

if __name__ == "__main__":
    main()
