"""An adapter's files are read beside the engine's steps."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from folovllm import AsyncLLM, ModelLoadError, SamplingParams
from folovllm.engine import lora_loader
from folovllm.lora.request import LoRARequest
from tests.m12.conftest import Choir
from tests.m12.support import lora_engine

PROMPT, GUARD = [5, 6, 7], 600
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


async def said(llm: AsyncLLM, name: str, lora: LoRARequest | None) -> list[int]:
    generated = llm.generate({"prompt_token_ids": PROMPT}, GREEDY, name, lora_request=lora)
    return list([output async for output in generated][-1].outputs[0].token_ids)


def test_others_go_on_while_an_adapter_is_read(choir: Choir, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, read = threading.Event(), threading.Event(), lora_loader.read_adapter
    reads: list[str] = []

    def reading(request: LoRARequest, *args: Any) -> Any:
        reads.append(request.lora_name)
        begun.set()
        assert may_end.wait(GUARD)
        return read(request, *args)

    monkeypatch.setattr(lora_loader, "read_adapter", reading)

    async def ask() -> None:
        async with AsyncLLM.from_engine(lora_engine(choir.folder)) as llm:
            voiced = [asyncio.create_task(said(llm, str(i), choir.requests["all"])) for i in range(2)]
            await asyncio.to_thread(begun.wait, GUARD)
            assert await said(llm, "plain", None) == choir.greedy(None, PROMPT, 8)
            may_end.set()
            assert await asyncio.gather(*voiced) == [choir.greedy("all", PROMPT, 8)] * 2

    asyncio.run(ask())
    assert reads == ["all"]


def test_one_that_cannot_be_read_fails_its_request_alone(choir: Choir) -> None:
    async def ask() -> None:
        async with AsyncLLM.from_engine(lora_engine(choir.folder)) as llm:
            with pytest.raises(ModelLoadError, match="^lora_path must be a folder with adapter_config.json"):
                await said(llm, "a", LoRARequest("gone", 9, str(choir.folder / "gone")))
            assert await said(llm, "b", None) == choir.greedy(None, PROMPT, 8)

    asyncio.run(ask())
