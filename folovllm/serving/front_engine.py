"""The engine as a front sees it that has none of its own: facts and a tokenizer, with which
requests are checked and tokens become text.

vLLM: v1/engine/async_llm.py (its input_processor and tokenizer, beside the EngineCoreClient)
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from folovllm.config import EngineConfig, ModelConfig
from folovllm.engine.input_processor import Checked, InputProcessor, Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.output_processor import fastest_decoder
from folovllm.model_loader import load_tokenizer
from folovllm.sampling_params import SamplingParams
from folovllm.serving.wire import Growing, Text


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What the front must know of an engine to check requests for it. The same of every replica."""

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

    def checked(self, prompt: Prompt, params: SamplingParams | None) -> Checked:
        """Raises ValueError: see InputProcessor.check."""
        if isinstance(prompt, Checked) and params is None:
            return prompt
        return next(self.input_processor.check([prompt], params))

    def growing(self, checked: Checked) -> Growing:
        """What adds up the answer to it."""
        return Growing(checked.text, checked.token_ids, Text.of(self._decoder, checked))
