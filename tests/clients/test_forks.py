"""What a forked child may use of its parent's engine: an LLM of one process, whole; a client of a thread or of another
process gets one error. The parent never notices the child.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, AsyncLLM, EngineDeadError, SamplingParams, StructuredOutputsParams
from folovllm.engine.engine_client import EngineClient
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from folovllm.tracing.attach import TraceFile
from tests.helpers import in_a_fork

ENGINE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_model_len": 64}
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MAKERS = {"thread": lambda: AsyncLLM(**ENGINE), "process": lambda: MPClient(EngineProcess("embedded", **ENGINE))}


async def tokens(client: EngineClient, start: int = 5) -> list[int]:
    return [output.outputs[0].token_ids async for output in client.generate([start, 6, 7], PARAMS)][-1]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_client_is_its_parents(kind: str) -> None:
    """Even where requests run in the parent at that moment; and the child may shut it down."""
    client = MAKERS[kind]()

    async def child() -> None:
        for call in (lambda: tokens(client), client.reset_prefix_caches, lambda: anext(client.generate([5], PARAMS))):
            with pytest.raises(EngineDeadError, match=r"^process \d+ is a fork of \d+, to which the engine belongs"):
                await call()
        await client.shutdown()

    async def run() -> None:
        expected = await tokens(client)
        running = client.generate([5, 6, 7], PARAMS)
        await anext(running)
        await asyncio.to_thread(in_a_fork, lambda: asyncio.run(child()))
        assert [output.outputs[0].token_ids async for output in running][-1] == expected
        assert await tokens(client) == expected
        await client.shutdown()

    asyncio.run(run())


def test_a_fork_that_ends_as_a_program_does_leaves_its_parents_engine_alone() -> None:
    program = (
        "import os, sys\nfrom tests.clients.test_forks import *\nif __name__ == '__main__':\n"
        "    process = EngineProcess('embedded', **ENGINE)\n    if os.fork() == 0: sys.exit()\n"
        "    assert os.wait()[1] == 0; client = MPClient(process); print(asyncio.run(tokens(client)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{LLM(**ENGINE).generate([[5, 6, 7]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids}\n"
    assert done.stderr == ""


def test_an_llm_goes_on_in_a_fork_and_its_trace_stays_its_parents(tmp_path: Path) -> None:
    """With a form, whose masks the parent has computed in a thread."""
    pytest.importorskip("llguidance")
    llm = LLM(observers=[TraceFile(tmp_path / "trace")], **ENGINE)
    form = SamplingParams(temperature=0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[ab]{8}"))

    def texts() -> list[str]:
        return [output.outputs[0].text for output in llm.generate(["Once", "Then"], form, use_tqdm=False)]

    expected, before = texts(), (tmp_path / "trace").read_bytes()

    def work() -> None:
        assert texts() == expected

    in_a_fork(work)
    assert (tmp_path / "trace").read_bytes() == before
    assert texts() == expected
    assert len((tmp_path / "trace").read_bytes()) > len(before)
