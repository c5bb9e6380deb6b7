"""The names of torch.cuda that the engine uses, answered by the stand-in. Any other name still is torch's own, which
raises for want of a driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.fake_cuda.machine import FakeCuda, FreedMemoryError, Ledger, Recording


def runtime(machine: FakeCuda) -> dict[str, Any]:
    """What stands in for torch.cuda.<name>."""

    class Event:
        """Knows which copies were queued before it."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._device = machine.device()
            self._copies: list[Any] = []

        def record(self, stream: Any = None) -> None:
            _refuse(stream)
            self._device = machine.device()
            self._copies = list(self._device.copies)

        def synchronize(self) -> None:
            """No wait for the device: what was queued behind the event goes on."""
            machine.check()
            self._device.refuse_in_capture("waiting for an event")
            known = {id(copy) for copy in self._copies}
            places = [place for place, copy in enumerate(self._device.copies) if id(copy) in known]
            self._device.finish_copies(places[-1] + 1 if places else 0)
            self._copies = []

        def query(self) -> bool:
            machine.check()
            return not any(copy in self._device.copies for copy in self._copies)

    class CUDAGraph:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.recording: Recording | None = None

        def replay(self) -> None:
            machine.check()
            assert self.recording is not None, "replay() of a graph that holds nothing"
            machine.launches["graph"] += 1
            for kernel in self.recording.kernels:
                if any(reference() is None for reference in kernel.outside):
                    raise FreedMemoryError(f"a kernel reads memory that has been freed, recorded at {kernel.place}")
                if machine.numbers:
                    kernel.compute()

        def reset(self) -> None:
            self.recording = None

    @contextmanager
    def graph(cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
        _refuse(stream)
        device = machine.device()
        device.wait("recording a graph")  # torch.cuda.graph synchronises before it begins
        ledger = machine.graph_pools.get(pool) or Ledger()
        device.pools.add(ledger)
        if pool is not None:
            machine.graph_pools[pool] = ledger
        recording = device.capturing = Recording(device, ledger)
        try:
            yield
        except BaseException:
            device.capturing = None
            raise
        recording.end()
        cuda_graph.recording = recording

    class use_device:
        """As torch.cuda.device: one object may be entered again and again."""

        def __init__(self, device: Any) -> None:
            self.index, self.before = machine.device(device).index, 0

        def __enter__(self) -> None:
            self.before, machine.current = machine.current, self.index

        def __exit__(self, *error: object) -> None:
            machine.current = self.before

    class Properties:
        name, multi_processor_count = "stand-in for an H100", 132

        def __init__(self, device: Any = None) -> None:
            self.major, self.minor = machine.capability
            self.total_memory = machine.device(device).total_bytes

    def set_device(device: Any) -> None:
        machine.current = machine.device(device).index

    def synchronize(device: Any = None) -> None:
        machine.check()
        machine.device(device).wait("synchronize")

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        on = machine.device(device)
        return on.total_bytes - on.bytes_in_use, on.total_bytes

    def reset_peak(device: Any = None) -> None:
        memory = machine.device(device).memory
        memory.peak = memory.live

    def empty_cache() -> None:
        """The pools of graphs that are gone are given back."""
        for device in machine.devices:
            device.refuse_in_capture("giving memory back")

    def graph_pool_handle() -> tuple[int, int]:
        machine.num_pools += 1
        return (0, machine.num_pools)

    return {
        "is_available": lambda: True,
        "device_count": lambda: len(machine.devices),
        "current_device": lambda: machine.current,
        "set_device": set_device,
        "device": use_device,
        "synchronize": synchronize,
        "empty_cache": empty_cache,
        "memory_allocated": lambda device=None: machine.device(device).memory.live,
        "max_memory_allocated": lambda device=None: machine.device(device).memory.peak,
        "reset_peak_memory_stats": reset_peak,
        "mem_get_info": mem_get_info,
        "get_device_properties": Properties,
        "get_device_capability": lambda device=None: machine.capability,
        "get_device_name": lambda device=None: Properties.name,
        "manual_seed_all": lambda seed: None,
        "graph_pool_handle": graph_pool_handle,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "Event": Event,
    }


def _refuse(stream: Any) -> None:
    if stream is not None:
        raise NotImplementedError("the stand-in has one stream for each device, the default one")


class HostGenerator(torch.Generator):
    """On the CPU, whatever device is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, device="cpu")
