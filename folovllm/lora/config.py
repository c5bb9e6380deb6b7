"""LoRAConfig: the engine's limits for adapters. vLLM: config/lora.py"""

from __future__ import annotations

from dataclasses import dataclass

from folovllm.utils.checks import check_bool, check_int


@dataclass
class LoRAConfig:
    """Whether requests may name adapters, and how many there may be at a time.

    enable_lora: let requests be answered by adapters
    max_loras: most different ones in a step
    max_lora_rank: most that a matrix of an adapter may have
    """

    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        check_bool("enable_lora", self.enable_lora)
        check_int("max_loras", self.max_loras, 1)
        check_int("max_lora_rank", self.max_lora_rank, 1)
