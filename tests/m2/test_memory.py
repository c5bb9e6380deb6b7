"""Memory that is free."""

from __future__ import annotations

import torch

from folovllm.utils import memory
from folovllm.utils.devices import total_memory_bytes


def test_free_memory_is_part_of_the_whole() -> None:
    cpu = torch.device("cpu")
    assert 0 < memory.free_memory_bytes(cpu) <= total_memory_bytes(cpu)
