"""One logger per module, printed through rich; FOLOVLLM_LOG_LEVEL sets the level (default WARNING).

The handler sits on the `folovllm` logger, not on the root one: a program that imports this package keeps
its own logging as it was.

vLLM: vllm/logger.py
"""

from __future__ import annotations

import logging
import os

_ROOT = "folovllm"


def init_logger(name: str) -> logging.Logger:
    """The logger for a module: `logger = init_logger(__name__)`."""
    root = logging.getLogger(_ROOT)
    if not root.handlers:
        _configure(root)
    return logging.getLogger(name if name == _ROOT or name.startswith(_ROOT + ".") else f"{_ROOT}.{name}")


def _configure(root: logging.Logger) -> None:
    from rich.console import Console
    from rich.logging import RichHandler

    level = os.environ.get("FOLOVLLM_LOG_LEVEL", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise ValueError(
            f"FOLOVLLM_LOG_LEVEL must be one of {', '.join(logging.getLevelNamesMapping())}, got {level!r}"
        )
    # Logs go to stderr: stdout belongs to the generated text and to --json.
    root.addHandler(RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"))
    root.setLevel(level)
    root.propagate = False
