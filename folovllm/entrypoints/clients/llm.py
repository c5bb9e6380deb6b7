"""LLM with what programs for vLLM call on it; what it computes is the milestones' LLM.

vLLM: entrypoints/llm.py
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from folovllm.engine.input_processor import Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints import llm as base
from folovllm.entrypoints.clients.beam_search import BeamSearchOutput, BeamSearchParams, to_output
from folovllm.entrypoints.clients.chat import check_no_lora, check_no_tools, conversation_to_prompt
from folovllm.entrypoints.clients.generation_defaults import load_generation_defaults
from folovllm.entrypoints.clients.options import engine_options
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_choice

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(base.LLM):
    """An engine for offline use.

    Args:
        model: a Hugging Face hub id, a local folder in that format, or None for the small model that ships here.
        generation_config: "auto": chat() without parameters draws as the checkpoint's generation_config.json says;
            "vllm": as SamplingParams() says.
        **kwargs: any field of ModelConfig, CacheConfig or SchedulerConfig by its name, or by vLLM's; see options.py.

    Raises:
        TypeError: an unknown keyword; the text names the nearest valid one.
        ValueError: a value out of its range, or a model that cannot be loaded.
    """

    def __init__(self, model: str | None = None, *, generation_config: str = "auto", **kwargs: Any) -> None:
        check_choice("generation_config", generation_config, ("auto", "vllm"))
        super().__init__(model, **engine_options(kwargs))
        self._uses_generation_config = generation_config == "auto"

    @property
    def llm_engine(self) -> LLMEngine:
        return self.engine

    @cached_property
    def _generation_defaults(self) -> dict[str, Any]:
        return load_generation_defaults(self.engine.model_config) if self._uses_generation_config else {}

    def get_default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json says, and SamplingParams' own defaults besides."""
        return SamplingParams(**self._generation_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """As the milestones' LLM.generate; token ids may be numpy's, as an array for each prompt."""
        check_no_lora(lora_request)
        if isinstance(prompts, np.ndarray):
            prompts = prompts.tolist()
        elif isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], np.integer):
            prompts = [prompts]  # type: ignore[assignment]
        return super().generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=priority)

    def chat(
        self,
        messages: base.Messages | list[base.Messages],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, in the format of the model's chat template.

        Without sampling_params it draws by get_default_sampling_params(). See conversation_to_prompt for the rest.
        """
        check_no_tools(tools)
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            conversation_to_prompt(
                self.engine.tokenizer,
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template=chat_template,
                template_args=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of each prompt, best first.

        They are ranked as Hugging Face does: by the log-probability of what was generated, divided by its length to
        the power of length_penalty.

        Raises:
            ValueError: a wrong value, or beams that do not fit into the KV cache.
        """
        outputs = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm)
        return [to_output(output, self.engine.tokenizer) for output in outputs]
