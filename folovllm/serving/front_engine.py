"""FrontEngine: what a client has of an engine elsewhere, facts and a tokenizer. It checks requests with them, and makes
text of tokens.

vLLM: v1/engine/async_llm.py (its input_processor and tokenizer, beside the EngineCoreClient)
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.deltas import DeltaDecoder
from folovllm.engine.engine_client import OutputCollector
from folovllm.engine.input_processor import Checked, InputProcessor
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.output_processor import fastest_decoder
from folovllm.model_loader import load_tokenizer


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a client must know of an engine to check requests for it. The same of every replica."""

    config: EngineConfig
    vocab_size: int
    device: str
    dtype: str
    pid: int

    @classmethod
    def of(cls, engine: LLMEngine) -> RemoteFacts:
        """In the engine's process."""
        dtype = str(engine.dtype).removeprefix("torch.")
        return cls(engine.config, engine.runner.vocab_size, str(engine.device), dtype, os.getpid())


class FrontEngine:
    """The weights are not here."""

    def __init__(self, facts: RemoteFacts) -> None:
        self.facts, self.config = facts, facts.config
        self.model_config: ModelConfig = facts.config.model_config
        self.tokenizer = None if self.model_config.skip_tokenizer_init else load_tokenizer(self.model_config)
        self.input_processor = InputProcessor(self.tokenizer, facts.vocab_size, facts.config)
        self.max_model_len = self.input_processor.max_model_len
        known = self.input_processor.tokenizer
        self._decoder = None if known is None else fastest_decoder(known)

    def collector(self, request_id: str, checked: Checked) -> OutputCollector:
        """What adds up the answer to a request."""
        return OutputCollector(request_id, DeltaDecoder(checked, self._decoder))
