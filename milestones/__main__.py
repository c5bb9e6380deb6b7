"""`python -m milestones`."""

from __future__ import annotations

import sys

from milestones.cli import main

if __name__ == "__main__":
    sys.exit(main())
