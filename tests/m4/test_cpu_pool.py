"""The threads of the compiled kernels: whatever happens to them, a product has the bits that one thread gives it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from folovllm.layers import compiled_ops as cpu
from folovllm.utils import cpu_kernels
from tests.helpers import in_a_fork

REASON = cpu_kernels.unavailable_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
BUSY = "while True: pass"


@pytest.fixture
def threads() -> Iterator[int]:
    """More threads than the machine has cores, so that some are not running."""
    before, several = torch.get_num_threads(), (os.cpu_count() or 1) + 2
    torch.set_num_threads(several)
    yield several
    torch.set_num_threads(before)


class Products:
    """Products of one weight with few rows and with many, and what one thread makes of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.outs = 700
        self.packed = cpu.pack(torch.randn(self.outs, 512))
        self.inputs = [torch.randn(rows, 512) for rows in (1, 8, 60)]
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        self.wanted = self.compute()
        torch.set_num_threads(before)

    def compute(self) -> list[torch.Tensor]:
        return [cpu.linear(x, self.packed, None, self.outs) for x in self.inputs]

    def hold(self, rounds: int) -> bool:
        """Without torch's own threads, which do not survive a fork."""
        return all(
            got.numpy().tobytes() == want.numpy().tobytes()
            for _ in range(rounds)
            for got, want in zip(self.compute(), self.wanted, strict=True)
        )


def test_more_threads_than_cores(threads: int) -> None:
    assert Products().hold(50)


def test_beside_processes_that_keep_every_core_busy(threads: int) -> None:
    """Then a thread stops running in the middle of a task, which another one computes again."""
    products = Products()
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        assert products.hold(100)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_two_callers_at_a_time(threads: int) -> None:
    """The kernels run without Python's lock: the one that comes second does its tasks alone."""
    products, found = Products(), list[bool]()
    callers = [threading.Thread(target=lambda: found.append(products.hold(50))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [True] * 3


def test_a_weight_may_go_while_a_thread_is_late(threads: int) -> None:
    """Its memory is given back when no thread can be reading it: this would crash."""
    for _ in range(200):
        packed = cpu.pack(torch.ones(640, 512))
        assert cpu.linear(torch.ones(2, 512), packed, None, 640).sum() == 2 * 640 * 512
        del packed


def test_a_forked_process_starts_threads_of_its_own(threads: int) -> None:
    products = Products()
    assert products.hold(2)

    def work() -> None:
        torch.set_num_threads(threads)  # an engine leaves a fork one
        assert products.hold(5)

    in_a_fork(work)
