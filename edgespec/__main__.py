"""Entry point of `python -m edgespec`, which is the same as the command `edgespec`."""

from __future__ import annotations

import sys

from edgespec.cli import main

if __name__ == "__main__":
    sys.exit(main())
