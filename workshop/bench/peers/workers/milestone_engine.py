"""A milestone's LLM, asked as vLLM's is: every milestone from M1 on has these names. vLLM: none"""

from __future__ import annotations

from importlib import import_module
from typing import Any

NEEDS = ("folovllm",)
vllm_engine: Any = import_module("vllm_engine")  # which is beside the worker that imports this file


class Engine(vllm_engine.Engine):  # type: ignore[misc]
    package, attribute = "folovllm", "engine"
