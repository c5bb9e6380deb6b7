"""Ranks belong to the process that started them. A fork, with copies of sockets and memory, gets one error, and neither
its parent nor the ranks notice it.
"""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from folovllm import EngineDeadError
from tests.helpers import in_a_fork
from tests.m9.support import GUARD, KINDS
from tests.m9.test_ranks import embedded, tokens_of, two_ranks

REFUSED = r"^process \d+ is a fork of \d+, to which the engine belongs; make one in each process$"


@pytest.fixture(params=[pytest.param("gloo", marks=pytest.mark.exhaustive), KINDS[1]])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "yes" if request.param == "memory" else "no")


@pytest.mark.usefixtures("kernels")
def test_a_fork_gets_one_error_and_its_parent_the_right_tokens() -> None:
    llm, expected = two_ranks(), tokens_of(embedded())
    assert tokens_of(llm) == expected

    def work() -> None:
        for _ in range(2):
            with pytest.raises(EngineDeadError, match=REFUSED):
                tokens_of(llm)
        assert tokens_of(embedded()) == expected  # what it makes itself is its own

    in_a_fork(work)
    assert tokens_of(llm) == expected


@pytest.mark.usefixtures("kernels")
def test_ranks_end_with_their_parent_and_not_with_a_fork() -> None:
    """A fork that ends as a program does leaves them alone. One that lives on does not keep them."""
    program = (
        "import os, sys; from tests.m9.test_ranks import *; llm, expected = two_ranks(), tokens_of(embedded())\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait(); assert tokens_of(llm) == expected\n"
        "if os.fork() == 0: input(); os._exit(0)\n"
        "print(process_of(llm).pid, flush=True); os.wait()"
    )
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)
    assert parent.stdout is not None
    rank = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    rank.wait(GUARD)
    parent.communicate()  # its fork has waited for a line
