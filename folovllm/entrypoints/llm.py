"""LLM: generate for a list of prompts and wait for all of them. vLLM: entrypoints/llm.py"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from folovllm.engine.defaults import config_for_llm
from folovllm.entrypoints.beam_search import BeamSearchOutput, BeamSearchParams, to_output
from folovllm.entrypoints.chat_template import conversation_to_prompt
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.entrypoints.metrics_reader import Metric, metrics_of
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import Attach, make_engine
from folovllm.utils.checks import check_choice
from folovllm.utils.ids import next_unused

if TYPE_CHECKING:
    from folovllm.engine.input_processor import Prompt
    from folovllm.engine.llm_engine import LLMEngine

Messages = list[dict[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """An engine for offline use.

    The steps of the small model that ships here compute with one CPU thread, unless OMP_NUM_THREADS or
    torch.set_num_threads() says otherwise. Between the steps torch has the number that it had before.

    Args:
        model: a Hugging Face hub id, a local folder in that format, or None for the small model that ships here.
        trace: a file that gets a record of every step (`folovllm trace view` shows it). Whole after trace.close().
        trace_texts: whether the trace has prompts and tokens, too; without them, only how many.
        nvtx: name the parts of each step in NVIDIA's profilers; needs a GPU.
        observers: each is called with the engine before its first step, and adds to `engine.observers` what else is to
            look at it.
        generation_config: "auto": chat() without parameters draws as the checkpoint's generation_config.json says;
            "vllm": as SamplingParams() says.
        **kwargs: any field of ModelConfig, CacheConfig or SchedulerConfig by its name: tokenizer, dtype, device,
            max_model_len, seed, load_format, skip_tokenizer_init, ... Or by vLLM's name; see engine/defaults.py.

    Raises:
        TypeError: an unknown keyword; the text names the nearest valid one.
        ValueError: a value out of its range, or a model that cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        trace: str | PathLike[str] | None = None,
        trace_texts: bool = True,
        nvtx: bool = False,
        observers: Sequence[Attach] = (),
        generation_config: str = "auto",
        **kwargs: Any,
    ) -> None:
        check_choice("generation_config", generation_config, ("auto", "vllm"))
        self._uses_generation_config = generation_config == "auto"
        # All prompts are given at once and all texts come back at once: gaps between tokens are not seen.
        kwargs["performance_mode"] = kwargs.get("performance_mode") or "throughput"
        config = config_for_llm(model, **kwargs)
        from folovllm.engine.llm_engine import LLMEngine  # and torch, which takes seconds: what is wrong is said before

        self.engine, self.trace = make_engine(
            lambda: LLMEngine(config), trace, texts=trace_texts, nvtx=nvtx, observers=observers
        )
        self._request_ids = count()

    @property
    def llm_engine(self) -> LLMEngine:
        return self.engine

    @cached_property
    def _generation_defaults(self) -> dict[str, Any]:
        return load_generation_defaults(self.engine.model_config) if self._uses_generation_config else {}

    def get_default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json says, and SamplingParams' own defaults besides."""
        return SamplingParams(**self._generation_defaults)

    def get_tokenizer(self) -> Any:
        return self.engine.get_tokenizer()

    def reset_prefix_cache(self) -> None:
        """Forget what has been computed: the next prompts find nothing of it."""
        self.engine.reset_prefix_cache()

    def get_metrics(self) -> list[Metric]:
        """What is counted of the engine, under vLLM's names."""
        return metrics_of(self.engine.stats(), self.engine.model_config.model)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs come in the order of the prompts. Threads may call this at the same time:
        the prompts of all are computed together.

        Args:
            prompts: one prompt or a list; a prompt is text, token ids (numpy's, too) or {"prompt_token_ids": [...]}.
            sampling_params: one for all prompts, or a list with one for each.
            use_tqdm: show a progress bar, where it can be seen.
            priority: one number for each prompt, the lowest served first; needs policy="priority".

        Raises:
            ValueError: a prompt or its parameters cannot be served; then no prompt of this call is.
        """
        if lora_request is not None:  # lm-eval gives it, as None
            raise ValueError(f"lora_request must be None, got {lora_request!r}: adapters are not supported")
        prompt_list = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        is_list = isinstance(sampling_params, Sequence)
        params_list: Any = sampling_params if is_list else [sampling_params] * len(prompt_list)
        priorities = [0] * len(prompt_list) if priority is None else list(priority)
        for name, given in (("sampling_params must be one or", params_list), ("priority must be", priorities)):
            if len(given) != len(prompt_list):
                raise ValueError(f"{name} as many as the prompts, got {len(given)} for {len(prompt_list)}")

        request_ids: list[str] = []
        try:
            for prompt, params, rank in zip(prompt_list, params_list, priorities, strict=True):
                request_ids.append(next_unused("request", self._request_ids, lambda name: self.engine.holds({name})))
                self.engine.add_request(request_ids[-1], prompt, params, priority=rank)  # type: ignore[arg-type]
            return self._run(request_ids, show_progress=use_tqdm)
        except BaseException:  # not even an interrupt leaves requests of this call behind
            for request_id in request_ids:
                self.engine.abort_request(request_id)
            raise

    def chat(
        self,
        messages: Messages | list[Messages],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, in the format of the model's chat template.

        Without sampling_params it draws by get_default_sampling_params().

        Args:
            messages: each is {"role": ..., "content": ...}, with text or a list of {"type": "text", "text": ...}.
            chat_template: another template than the model's own, in Jinja.
            add_generation_prompt: end the prompt with the beginning of an answer.
            continue_final_message: end it inside the last message, which the model goes on with; then no beginning.
            tools: what the template shows the model, each {"type": "function", "function": {"name": …, …}}. Its
                calls come as text; a parser of folovllm.serving.tool_parsers reads them.
            chat_template_kwargs: the template's own variables.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            conversation_to_prompt(
                self.engine.tokenizer,
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
                tools=tools,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

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

    def _run(self, request_ids: list[str], *, show_progress: bool) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        unfinished = set(request_ids)
        counts: dict[str, int] = {}
        with _progress(enabled=show_progress) as progress:
            task = progress.add_task("generating", total=len(request_ids), speed="")
            while unfinished:
                for output in self.engine.step_for(unfinished):
                    if output.metrics is not None:
                        counts[output.request_id] = output.metrics.num_output_tokens
                    if output.finished:
                        finished[output.request_id] = output
                        unfinished.discard(output.request_id)
                        progress.advance(task)
                elapsed = progress.tasks[0].elapsed
                progress.update(task, speed=f"{sum(counts.values()) / elapsed:.1f} tokens/s" if elapsed else "")
        return [finished[request_id] for request_id in request_ids]


def _is_one_prompt(prompts: Any) -> bool:
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    if isinstance(prompts, Sequence) and not isinstance(prompts, str):
        return bool(prompts) and isinstance(prompts[0], (int, np.integer))
    return True


def _progress(*, enabled: bool) -> Progress:
    speed = TextColumn("{task.fields[speed]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), speed)
    console = Console(stderr=True)  # not into what a program prints
    is_seen = console.is_terminal or console.is_jupyter  # into a pipe, it would write empty lines
    return Progress(*columns, console=console, transient=True, disable=not (enabled and is_seen))
