"""`python -m folovllm` is the `folovllm` command. vLLM: entrypoints/cli/main.py"""

from __future__ import annotations

import sys

from folovllm.utils.threads import set_wait_policy

set_wait_policy()  # before torch is imported

from folovllm.entrypoints.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
