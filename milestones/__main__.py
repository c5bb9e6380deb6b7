"""`python -m milestones`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 (a fresh clone meets whatever Python is there)
        sys.exit("error: python -m milestones needs Python 3.11 or newer")
    from milestones.cli import main

    sys.exit(main())
