"""What a call takes on a device, compiled and warm; and how many calls are shown. vLLM: none"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch


class Timer:
    """The first call is made at once, and compiles. On a GPU events time `repeats` calls in a row, so that starting and
    waiting are a small part; with `graph` they are replays of a CUDA graph, without launches of the host."""

    def __init__(
        self, call: Callable[[], object], device: torch.device, repeats: int = 1, *, graph: bool = False
    ) -> None:
        self._call, self._device, self._repeats = call, device, repeats
        call()
        if graph and device.type == "cuda":
            torch.cuda.synchronize(device)
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                call()
            self._call = recorded.replay
            self._call()

    def seconds(self) -> float:
        if self._device.type != "cuda":
            start = time.perf_counter()
            self._call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        begin.record()
        for _ in range(self._repeats):
            self._call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / self._repeats


def by_round(seconds: Sequence[float], rounds: int) -> list[float]:
    """Of many calls in a row, the median of each of `rounds` equal parts of them, in milliseconds."""
    size = len(seconds) // rounds
    return [statistics.median(seconds[at : at + size]) * 1e3 for at in range(0, rounds * size, size)]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
