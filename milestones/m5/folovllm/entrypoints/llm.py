"""LLM: generate for a list of prompts and wait for all of them. vLLM: entrypoints/llm.py"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.chat_messages import chat_to_prompt
from folovllm.engine.input_processor import Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.entrypoints.beam_search import BeamSearchOutput, BeamSearchParams, to_output
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.ids import next_unused

Messages = list[dict[str, Any]]


class LLM:
    """An engine for offline use.

    The steps of the small model that ships here compute with one CPU thread, unless OMP_NUM_THREADS or
    torch.set_num_threads() says otherwise. Between the steps torch has the number that it had before.

    Args:
        model: a Hugging Face hub id, a local folder in that format, or None for the small model that ships here.
        **kwargs: any field of ModelConfig, CacheConfig or SchedulerConfig by its name: tokenizer, dtype, device,
            max_model_len, seed, load_format, skip_tokenizer_init, ...

    Raises:
        TypeError: an unknown keyword; the text names the nearest valid one.
        ValueError: a value out of its range, or a model that cannot be loaded.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        self.engine = LLMEngine(config_for_llm(model, **kwargs))
        self._request_ids = count()

    def get_tokenizer(self) -> Any:
        return self.engine.get_tokenizer()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs come in the order of the prompts. Threads may call this at the same time:
        the prompts of all are computed together.

        Args:
            prompts: one prompt or a list; a prompt is text, a list of token ids or {"prompt_token_ids": [...]}.
            sampling_params: one for all prompts, or a list with one for each.
            use_tqdm: show a progress bar, where it can be seen.
            priority: one number for each prompt, the lowest served first; needs policy="priority".

        Raises:
            ValueError: a prompt or its parameters cannot be served; then no prompt of this call is.
        """
        prompt_list = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        is_list = isinstance(sampling_params, Sequence)
        params_list: Any = sampling_params if is_list else [sampling_params] * len(prompt_list)
        if len(params_list) != len(prompt_list):
            given = f"got {len(params_list)} for {len(prompt_list)}"
            raise ValueError(f"sampling_params must be one or as many as the prompts, {given}")
        priorities = [0] * len(prompt_list) if priority is None else list(priority)
        if len(priorities) != len(prompt_list):
            raise ValueError(f"priority must be as many as the prompts, got {len(priorities)} for {len(prompt_list)}")

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
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, in the format of the model's chat template.

        Args:
            messages: each is {"role": ..., "content": ...}, with text or a list of {"type": "text", "text": ...}.
            chat_template: another template than the model's own, in Jinja.
            add_generation_prompt: end the prompt with the beginning of an answer.
            continue_final_message: end it inside the last message, which the model goes on with; then no beginning.
            chat_template_kwargs: the template's own variables.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            chat_to_prompt(
                self.engine.tokenizer,
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
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
    if isinstance(prompts, Sequence) and not isinstance(prompts, str):
        return bool(prompts) and isinstance(prompts[0], int)
    return True


def _progress(*, enabled: bool) -> Progress:
    speed = TextColumn("{task.fields[speed]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), speed)
    console = Console(stderr=True)  # not into what a program prints
    is_seen = console.is_terminal or console.is_jupyter  # into a pipe, it would write empty lines
    return Progress(*columns, console=console, transient=True, disable=not (enabled and is_seen))
