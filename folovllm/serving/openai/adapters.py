"""The adapters of a server, each by a name that clients give as `model`: those of --lora-modules, and those that POST
/v1/load_lora_adapter brings, where the process has VLLM_ALLOW_RUNTIME_LORA_UPDATING=true. Clients may then name folders
of this machine, so it is for those who may read them.

vLLM: entrypoints/openai/models/serving.py, entrypoints/serve/lora/
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from typing import Any

from folovllm.engine.input_processor import InputProcessor
from folovllm.lora.request import LoRARequest
from folovllm.serving.openai.body import WholeBody
from folovllm.serving.openai.errors import APIError
from folovllm.serving.openai.options import name_and_path

FLAG = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


class LoadAdapterRequest(WholeBody):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(WholeBody):
    lora_name: str


def may_change() -> bool:
    return os.environ.get(FLAG, "").strip().lower() in ("1", "true")


class Adapters:
    """models: names that the base has.

    Raises ValueError: one of --lora-modules is no adapter of this model.
    """

    def __init__(self, processor: InputProcessor, models: Sequence[str], modules: Sequence[str]) -> None:
        self._processor, self._models, self._numbers = processor, models, count(1)
        self.requests: dict[str, LoRARequest] = {}
        for module in modules:
            self.load(*name_and_path(module))

    def get(self, model: str | None) -> LoRARequest | None:
        return None if model is None else self.requests.get(model)

    def load(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Read once, so that what is wrong is said now. A folder that was written anew gets another number."""
        if name in self._models:
            raise ValueError(f"lora_name must be no name of the model itself, got {name!r}")
        if name in self.requests and not in_place:
            raise ValueError(f"lora_name {name!r} has already been loaded; set load_inplace to true to load it again")
        request = LoRARequest(name, next(self._numbers), path)
        self._processor.lora_loader.load(request)
        self.requests[name] = request

    def unload(self, name: str) -> None:
        """Requests that run keep it."""
        if self.requests.pop(name, None) is None:
            raise APIError(404, f"lora_name must be an adapter that is loaded, got {name!r}", param="lora_name")

    def cards(self, base: dict[str, Any]) -> list[dict[str, Any]]:
        """As /v1/models lists them, beside that of the base."""
        return [
            {**base, "id": name, "root": request.lora_path, "parent": base["id"]}
            for name, request in self.requests.items()
        ]
