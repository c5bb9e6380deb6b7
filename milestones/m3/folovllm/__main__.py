"""`python -m folovllm` is the `folovllm` command. vLLM: entrypoints/cli/main.py"""

from __future__ import annotations

import sys

from folovllm.entrypoints.commands import main

if __name__ == "__main__":
    sys.exit(main())
