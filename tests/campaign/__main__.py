"""Random engines under random loads, held against Hugging Face and a reference engine, for as long as you like.

python -m tests.campaign --minutes 60
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("FOLOVLLM_LOG_LEVEL", "ERROR")  # small caches are meant, and warned of

from tests import conftest  # noqa: F401  sets the environment before torch is imported
from tests.campaign.campaign import Campaign, replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to draw new cases (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="which cases; drawn and printed if left out")
    parser.add_argument(
        "--shrink-seconds", type=float, default=120.0, help="to make a failing case small (default: 120)"
    )
    parser.add_argument("--out", type=Path, default=Path(".cache/campaign"), help="where failing cases are written")
    parser.add_argument("--replay", type=Path, metavar="CASE", help="play this one again (a JSON file), nothing else")
    args = parser.parse_args()
    if args.replay is not None:
        return replay(args.replay)
    return Campaign(args.minutes, args.seed, args.out, args.shrink_seconds).run()


if __name__ == "__main__":
    sys.exit(main())
