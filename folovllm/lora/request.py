"""LoRARequest: which adapter answers a request; and LoRAModel: that adapter, read. Plain data, for core and client.

Two names with the same content are one adapter, and one name with other content is another. So the digest of the files
is what the scheduler counts, what the slots are found by, and what the prefix hash begins with.

Hu et al., 2021, LoRA, arXiv:2106.09685. vLLM: lora/request.py, lora/lora_model.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from folovllm.utils.checks import check_int, check_str


@dataclass(frozen=True)
class LoRARequest:
    """lora_name: for people. lora_int_id: a number of its own. lora_path: a folder that PEFT's save_pretrained() wrote.

    Files are read when a request names them and neither a slot nor an unfinished request has them still. A folder that
    was written anew while it is in use needs another number to be read again.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        check_str("lora_name", self.lora_name)
        check_int("lora_int_id", self.lora_int_id, 1)
        object.__setattr__(self, "lora_path", os.fspath(self.lora_path))
        check_str("lora_path", self.lora_path)


class Pair(NamedTuple):
    """What one of the model's matrices W becomes: W + scale * b @ a. Tensors, which the worker alone computes with."""

    a: Any
    """[rank, inputs]"""
    b: Any
    """[outputs, rank]"""
    scale: float


@dataclass(eq=False)
class LoRAModel:
    """pairs: by the matrices' names in the model's checkpoint, without ".weight". digest: sha256 of its files."""

    name: str
    digest: bytes
    pairs: dict[str, Pair]
