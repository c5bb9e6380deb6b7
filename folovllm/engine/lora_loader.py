"""LoRALoader: the adapter that a LoRARequest names, read from its folder unless someone still has it.

vLLM: lora/worker_manager.py (WorkerLoRAManager._load_adapter)
"""

from __future__ import annotations

from functools import cached_property
from weakref import WeakValueDictionary

from folovllm.config import EngineConfig
from folovllm.lora.peft import read_adapter
from folovllm.lora.request import LoRAModel, LoRARequest
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.lora import lora_modules
from folovllm.models.registry import decoder_spec
from folovllm.utils.checks import wrong


class LoRALoader:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._read: WeakValueDictionary[LoRARequest, LoRAModel] = WeakValueDictionary()  # slots and requests hold them

    @cached_property
    def _modules(self) -> dict[str, tuple[int, int]]:
        return lora_modules(decoder_spec(load_hf_config(self.config.model_config)))

    def has(self, request: LoRARequest) -> bool:
        """Whether it can be loaded without reading its files."""
        return isinstance(request, LoRARequest) and request in self._read

    def load(self, request: LoRARequest) -> LoRAModel:
        """Raises ValueError: it is no LoRARequest, or the engine has no adapters. ModelLoadError: see read_adapter."""
        if not isinstance(request, LoRARequest):
            raise wrong("lora_request", "be a LoRARequest or None", request)
        if not self.config.lora_config.enable_lora:
            raise wrong("lora_request", "be None in an engine without enable_lora=True", request.lora_name)
        found = self._read.get(request)
        if found is None:
            found = self._read[request] = read_adapter(request, self._modules, self.config.lora_config.max_lora_rank)
        return found
