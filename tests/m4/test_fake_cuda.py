"""The stand-in for a CUDA device finds what it is there to find: one fault at a time, as small as it can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from folovllm.layers.kernels.silu_mul import silu_mul
from tests.fake_cuda import (
    POISON,
    CaptureError,
    DeviceMismatchError,
    EscapedMemoryError,
    FakeCuda,
    FreedMemoryError,
    HostWaitError,
    PinnedMemoryError,
)


def numbers(count: int = 6, device: str = "cuda") -> torch.Tensor:
    return torch.arange(count, device=device)


def pinned(count: int = 6) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64, pin_memory=True)


WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: numbers()[2].item(),
    "int": lambda: int(numbers()[2]),
    "if": lambda: bool(numbers()[2] > 1),
    "tolist": lambda: numbers().tolist(),
    "cpu": lambda: numbers().cpu(),
    "to the host": lambda: numbers().to("cpu", non_blocking=True),
    "made from a list": lambda: torch.tensor([1, 2], device="cuda"),
    "from pageable memory": lambda: torch.arange(6).to("cuda", non_blocking=True),
    "blocking, from pinned memory": lambda: pinned().to("cuda"),
    "from scattered pinned memory": lambda: pinned()[::2].to("cuda", non_blocking=True),
    "into pageable memory": lambda: torch.arange(6).copy_(numbers(), non_blocking=True),
    "into scattered pinned memory": lambda: pinned()[::2].copy_(numbers(3), non_blocking=True),
    "blocking, into pinned memory": lambda: pinned().copy_(numbers()),
    "rows by a list": lambda: numbers()[[1, 2]],
    "rows by a host tensor": lambda: numbers()[torch.tensor([1, 2])],
    "rows by a mask": lambda: numbers()[numbers() > 2],
    "written by a mask": lambda: numbers().__setitem__(numbers() > 2, 0),
    "nonzero": lambda: numbers().nonzero(),
    "synchronize": lambda: torch.cuda.synchronize(),
}
NO_WAITS: dict[str, Callable[[], object]] = {
    "from pinned memory": lambda: pinned().to("cuda", non_blocking=True),
    "into pinned memory": lambda: pinned().copy_(numbers(), non_blocking=True),
    "rows by a tensor": lambda: numbers()[numbers(3)],
    "a slice": lambda: numbers()[1:3].add(1),
    "filled": lambda: numbers().masked_fill(numbers() > 2, 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_of_the_host(fake_cuda: FakeCuda, name: str) -> None:
    WAITS[name]()
    assert len(fake_cuda.waits) == 1
    with pytest.raises(HostWaitError), fake_cuda.no_waits():
        WAITS[name]()
    with pytest.raises(CaptureError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        WAITS[name]()


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_is_queued_waits_for_nothing(fake_cuda: FakeCuda, name: str) -> None:
    with fake_cuda.no_waits():
        NO_WAITS[name]()
    assert fake_cuda.waits == []


def test_a_host_tensor_that_stays_on_the_host_is_copied_when_a_copy_is_asked_for(fake_cuda: FakeCuda) -> None:
    one = torch.zeros(2)
    one.to(torch.float32, copy=True).fill_(1.0)
    assert one.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_tensors_of_two_devices(fake_cuda: FakeCuda, other: str) -> None:
    with pytest.raises(DeviceMismatchError, match="cuda:0"):
        numbers() + numbers(device=other)
    with pytest.raises(DeviceMismatchError):
        numbers(device=other) + numbers()
    with pytest.raises(DeviceMismatchError):
        torch.cat([numbers(), numbers(device=other)])
    assert (numbers() + torch.tensor(3)).tolist() == [3, 4, 5, 6, 7, 8]  # a number may come from anywhere


def gate(device: str) -> torch.Tensor:
    return torch.ones(2, 32, device=device)


def test_a_kernel_is_launched_on_the_current_device(fake_cuda: FakeCuda) -> None:
    expected = torch.nn.functional.silu(torch.ones(2, 16))
    assert torch.allclose(silu_mul(gate("cuda:0")).cpu(), expected)
    with pytest.raises(DeviceMismatchError, match="current device is cuda:0"):
        silu_mul(gate("cuda:1"))
    torch.cuda.set_device("cuda:1")
    assert torch.allclose(silu_mul(gate("cuda")).cpu(), expected)
    with torch.cuda.device(0), pytest.raises(DeviceMismatchError, match="current device is cuda:0"):
        silu_mul(gate("cuda:1"))


def test_a_recording_is_of_one_device(fake_cuda: FakeCuda) -> None:
    there = numbers(device="cuda:1")
    with pytest.raises(CaptureError, match="cuda:1"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        there.add_(1)


def test_a_graph_computes_anew_from_the_same_places(fake_cuda: FakeCuda) -> None:
    source, target, graph = numbers(), numbers(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source * 2 + 1)
    source.fill_(4)
    graph.replay()
    assert target.tolist() == [9] * 6


def test_a_compilation_inside_a_recording(fake_cuda: FakeCuda) -> None:
    source, out = gate("cuda"), torch.empty(2, 16, device="cuda")
    with pytest.raises(CaptureError, match="would be compiled"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        out.copy_(silu_mul(source))
    silu_mul(source)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        out.copy_(silu_mul(source))


@pytest.mark.parametrize(
    "draw", [lambda noise: noise.exponential_(), lambda noise: torch.rand(3, device="cuda")], ids=["in place", "new"]
)
def test_a_random_draw_inside_a_recording(fake_cuda: FakeCuda, draw: Callable[[torch.Tensor], object]) -> None:
    noise = torch.empty(3, device="cuda")
    with pytest.raises(CaptureError, match="random draw"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        draw(noise)


def test_memory_that_escapes_from_a_recording(fake_cuda: FakeCuda) -> None:
    kept = []
    with pytest.raises(EscapedMemoryError, match="512 bytes"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kept.append(numbers())


def test_a_replay_that_reads_freed_memory(fake_cuda: FakeCuda) -> None:
    source, target, graph = numbers(), numbers(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source[1:].sum())
    graph.replay()
    view = source[2:]
    del source
    graph.replay()  # a view holds the memory, too
    del view
    with pytest.raises(FreedMemoryError):
        graph.replay()


def test_pinned_memory_that_is_read_before_its_event(fake_cuda: FakeCuda) -> None:
    host, arrived = pinned(2), torch.cuda.Event()
    host.copy_(numbers(2), non_blocking=True)
    arrived.record()
    assert host.numpy().view("uint8").tolist() == [POISON] * 16
    arrived.synchronize()
    assert host.tolist() == [0, 1]


def test_an_event_tells_of_what_was_queued_before_it(fake_cuda: FakeCuda) -> None:
    first, second, arrived = pinned(2), pinned(2), torch.cuda.Event()
    first.copy_(numbers(2), non_blocking=True)
    arrived.record()
    second.copy_(numbers(2), non_blocking=True)
    arrived.synchronize()
    assert first.tolist() == [0, 1]
    assert second.tolist() != [0, 1]


def test_pinned_memory_that_is_written_under_a_copy(fake_cuda: FakeCuda) -> None:
    host = pinned().fill_(3)
    there = host.to("cuda", non_blocking=True)
    host[4] = 7
    with pytest.raises(PinnedMemoryError, match="written"):
        there.sum().item()


def test_memory_is_counted(fake_cuda: FakeCuda) -> None:
    free = torch.cuda.mem_get_info()[0]
    first = torch.zeros(1000, dtype=torch.uint8, device="cuda")  # rounded up to 512
    view = first[5:]
    assert free - torch.cuda.mem_get_info()[0] == 1024 == torch.cuda.memory_allocated()
    del first
    assert torch.cuda.memory_allocated() == 1024
    del view
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 1024


def test_a_graphs_pool_stays_as_large_as_it_was(fake_cuda: FakeCuda) -> None:
    """A second graph in the same pool takes nothing more, unless it is larger."""
    free, source, pool = torch.cuda.mem_get_info()[0], numbers(64), torch.cuda.graph_pool_handle()
    graphs = []
    for count in (64, 32):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            source[:count].copy_(source[:count] + 1)
    assert free - torch.cuda.mem_get_info()[0] == 512 + 512
