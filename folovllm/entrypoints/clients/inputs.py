"""Prompts and parameters as clients give them, made into what the engine's own InputProcessor takes.

`adopt(engine)` puts it in front: the engine then also takes numpy's token ids and structured outputs.

vLLM: inputs/llm.py (TextPrompt, TokensPrompt)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np

from folovllm.engine.input_processor import InputProcessor, Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.structured.engine import GrammarCompiler
from folovllm.entrypoints.structured.processor import KEY
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text to show beside them."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


def plain_prompt(prompt: Any) -> Prompt:
    """The same prompt with numpy's integers made Python's; anything else stays for the engine to judge."""
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" not in prompt:
            return prompt
        return {**prompt, "prompt_token_ids": _plain_ids(prompt["prompt_token_ids"])}
    return prompt if isinstance(prompt, str) else _plain_ids(prompt)


def _plain_ids(token_ids: Any) -> Any:
    if isinstance(token_ids, np.ndarray):
        return token_ids.tolist()
    if isinstance(token_ids, (list, tuple)) and any(isinstance(token_id, np.integer) for token_id in token_ids):
        return [int(token_id) if isinstance(token_id, np.integer) else token_id for token_id in token_ids]
    return token_ids


def is_one_prompt(prompts: Any) -> bool:
    """Whether it is one prompt, and no list of them."""
    if isinstance(prompts, (str, Mapping)):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    return isinstance(prompts, (list, tuple)) and bool(prompts) and isinstance(prompts[0], (int, np.integer))


class ClientInputs(InputProcessor):
    """Stands where the engine's InputProcessor stood, and ends in it."""

    def __init__(self, engine: LLMEngine) -> None:
        super().__init__(engine.tokenizer, engine.runner.vocab_size, engine.input_processor.room, engine.config)
        self.grammars = GrammarCompiler(engine.tokenizer, self.vocab_size, engine.eos_token_ids)

    def process(self, request_id: str, prompt: Prompt, params: SamplingParams | None) -> Request:
        """Raises: as InputProcessor.process; ValueError also for a form that cannot be compiled."""
        if isinstance(params, SamplingParams):
            params = self.with_form(params)
        return super().process(request_id, plain_prompt(prompt), params)

    def with_form(self, params: SamplingParams) -> SamplingParams:
        """With the form compiled, for its logits processor. Raises ValueError: a wrong value, or form."""
        if params.structured_outputs is None:
            return params
        params.validate()
        form = self.grammars.compile(params.structured_outputs)
        extra_args = {**(params.extra_args or {}), KEY: form}
        return dataclasses.replace(params, extra_args=extra_args, structured_outputs=None)


def adopt(engine: LLMEngine) -> ClientInputs:
    """Let the engine take what clients of vLLM give. Doing it again changes nothing."""
    if not isinstance(engine.input_processor, ClientInputs):
        engine.input_processor = ClientInputs(engine)
    return engine.input_processor
