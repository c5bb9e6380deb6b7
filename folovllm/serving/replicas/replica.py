"""A replica: one engine in a process of its own, on any machine of the cluster. No Ray in here: it is a plain class.

vLLM: v1/engine/core.py (EngineCoreProc)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.input_processor import InputProcessor
from folovllm.engine.looks import EngineLook, look_at
from folovllm.model_loader import load_tokenizer
from folovllm.outputs import RequestOutput
from folovllm.serving.replicas.wire import Ask, differences


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What the front must know of an engine to check requests for it. The same of every replica."""

    config: EngineConfig
    vocab_size: int
    device: str
    dtype: str
    pid: int


class FrontEngine:
    """The engine as the front sees it: facts, and a tokenizer. The weights are not here."""

    def __init__(self, facts: ReplicaFacts) -> None:
        self.facts, self.config = facts, facts.config
        self.model_config: ModelConfig = facts.config.model_config
        self.tokenizer = None if self.model_config.skip_tokenizer_init else load_tokenizer(self.model_config)
        self.input_processor = InputProcessor(self.tokenizer, facts.vocab_size, facts.config)
        self.max_model_len = self.input_processor.max_model_len


class EngineReplica:
    """Args: as for AsyncLLM. Its methods are coroutines, so that all of them run in one event loop."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.llm = name, AsyncLLM(model, **options)

    async def facts(self) -> ReplicaFacts:
        engine = self.llm.engine
        return ReplicaFacts(
            engine.config,
            engine.runner.vocab_size,
            str(engine.device),
            str(engine.dtype).removeprefix("torch."),
            os.getpid(),
        )

    async def generate(self, ask: Ask) -> AsyncGenerator[RequestOutput, None]:
        """What each output gained. Raises: as AsyncLLM.generate."""
        params = ask.params
        if params.structured_outputs is not None:  # compiled here, and kept: the step that takes it in need not wait
            grammars = self.llm.engine.input_processor.grammars
            await asyncio.to_thread(grammars.compile, params.structured_outputs)
        outputs = self.llm.generate(ask.prompt, params, ask.request_id, priority=ask.priority)
        async with aclosing(differences(outputs, params)) as each:
            async for gained in each:
                yield gained

    async def abort(self, request_id: str) -> None:
        self.llm.abort(request_id)

    async def reset_prefix_cache(self) -> None:
        self.llm.reset_prefix_cache()

    async def look(self) -> EngineLook:
        return look_at(self.llm.engine, self.name)

    async def check_health(self) -> None:
        """Asked once a second. Raises RuntimeError where only another process can help: this one is then replaced."""
        if self.llm.is_closed:
            raise RuntimeError(f"the engine of {self.name} has ended by an error of its own")
