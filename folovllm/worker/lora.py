"""Which adapter is in which slot. A step's adapters have theirs; of the others, the one used last stays longest.

    slots 2    step 1: a b    step 2: b    step 3: b c        c takes the slot of a, whose last use is longest ago

vLLM: lora/worker_manager.py, lora/model_manager.py (LRUCacheLoRAModelManager)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from folovllm.lora.request import LoRAModel
from folovllm.request import Sequence as Seq


class LoRASlots:
    """put: writes an adapter into a slot of every layer. num_loads: how often it has."""

    def __init__(self, put: Callable[[int, LoRAModel], None], num_slots: int) -> None:
        self._put, self._free, self.num_loads = put, list(range(num_slots)), 0
        self._held: dict[bytes, tuple[int, LoRAModel]] = {}  # by digest; the one used last is last

    def of(self, seqs: Sequence[Seq]) -> list[int] | None:
        """The slot of each sequence's adapter, -1 where it has none; None: none of them has one. The scheduler has seen
        to it that there are slots enough."""
        wanted = {seq.lora.digest: seq.lora for seq in seqs if seq.lora is not None}
        if not wanted:
            return None
        for digest in [digest for digest in wanted if digest in self._held]:
            self._held[digest] = self._held.pop(digest)
        for digest, lora in wanted.items():
            if digest not in self._held:
                if not self._free:
                    self._free.append(self._held.pop(next(iter(self._held)))[0])
                self._put(self._free[-1], lora)
                self._held[digest] = self._free.pop(), lora
                self.num_loads += 1
        return [-1 if seq.lora is None else self._held[seq.lora.digest][0] for seq in seqs]
