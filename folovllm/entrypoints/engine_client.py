"""What a server needs of an engine, wherever it runs: AsyncLLM has it, and so has a router before several replicas.

vLLM: engine/protocol.py (EngineClient)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.input_processor import InputProcessor, Prompt
from folovllm.engine.looks import EngineLook, Load
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import RequestOutputKind, SamplingParams


class EngineFacts(Protocol):
    """What does not change while an engine lives."""

    tokenizer: Any | None
    config: EngineConfig
    model_config: ModelConfig
    max_model_len: int
    input_processor: InputProcessor


class EngineClient(Protocol):
    """See AsyncLLM for what each of them promises."""

    @property
    def engine(self) -> EngineFacts: ...

    @property
    def is_closed(self) -> bool: ...

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
        priority: int = 0, output_kind: RequestOutputKind | None = None,
    ) -> AsyncGenerator[RequestOutput, None]: ...  # fmt: skip

    def load(self) -> Load: ...

    def replicas(self) -> dict[str, str]: ...

    async def reset_prefix_caches(self) -> None: ...

    async def looks(self) -> list[EngineLook]: ...

    async def shutdown(self) -> None: ...
