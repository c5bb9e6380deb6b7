"""FoloVLLM: an LLM inference engine to learn from, in the shape of vLLM v1.

Public names load on first use (PEP 562): `import folovllm` imports neither torch nor transformers, so `--help` is fast.
`__init__.pyi` lists them, once for this file and for type checkers (as lazy_loader's `attach_stub` does it).

vLLM: __init__.py
"""

from __future__ import annotations

import ast
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from folovllm.vllm_names import MODULES

__version__ = "0.2.0"

if not hasattr(os, "fork"):
    raise ImportError("folovllm runs on Linux and macOS; on Windows, install it in WSL2: wsl --install")
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOME = {name.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names}
sys.modules.update(MODULES)

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'folovllm' has no attribute {name!r}")
    value = getattr(import_module(str(_HOME[name])), name)
    globals()[name] = value  # the next look-up does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
