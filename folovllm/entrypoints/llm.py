"""LLM: generate for a list of prompts and wait for all of them. vLLM: entrypoints/llm.py"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from folovllm.engine.builder.defaults import config_for_llm
from folovllm.entrypoints.beam_search import BeamSearchOutput, to_output
from folovllm.entrypoints.chat_template import conversation_to_prompt
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.entrypoints.metrics_reader import Metric, labels_of, metrics_of
from folovllm.entrypoints.pooling import PoolingMethods
from folovllm.lora.request import LoRARequest
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from folovllm.utils.ids import next_unused
from folovllm.vllm_names import KnowsVLLM, check_argument, check_keywords

if TYPE_CHECKING:
    from folovllm.engine.input_processor import Prompt
    from folovllm.engine.llm_engine import LLMEngine

Messages = list[dict[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(PoolingMethods, KnowsVLLM):
    """An engine for offline use.

    The steps of the small model that ships here compute with one CPU thread, unless OMP_NUM_THREADS or
    torch.set_num_threads() says otherwise. Between the steps torch has the number that it had before.

    Args:
        model: a Hugging Face hub id, a local folder in that format, or None for the small model that ships here.
        observers: each is called with the engine before its first step, and may listen to it from then on:
            folovllm.tracing.attach.TraceFile("run.gz"), say.
        generation_config: "auto" or None: chat() without parameters draws as the checkpoint's generation_config.json
            says; "vllm": as SamplingParams() says; or a folder with such a file.
        override_generation_config: values that count more than that file's.
        chat_template: for chat(), instead of the model's own, in Jinja.
        **kwargs: any field of ModelConfig, CacheConfig or SchedulerConfig by its name: tokenizer, dtype, device,
            max_model_len, seed, load_format, skip_tokenizer_init, ... Or by vLLM's name; see vllm_names.py.

    Raises:
        TypeError: an unknown keyword; the text names the nearest valid one.
        ValueError: a value out of its range, or a model that cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        observers: Sequence[Callable[[Any], object]] = (),
        generation_config: str | None = None,
        override_generation_config: dict[str, Any] | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._generation, self._chat_template = (generation_config or "auto", override_generation_config), chat_template
        # All prompts are given at once and all texts come back at once: gaps between tokens are not seen.
        kwargs["performance_mode"] = kwargs.get("performance_mode") or "throughput"
        config = config_for_llm(model, **kwargs)
        from folovllm.engine.llm_engine import LLMEngine  # and torch, which takes seconds: what is wrong is said before

        self.engine = LLMEngine(config)
        for attach in observers:
            attach(self.engine)
        self._request_ids = count()

    @classmethod
    def from_engine_args(cls, args: Any) -> LLM:
        return cls(**{name: value for name, value in vars(args).items() if value is not None})

    @property
    def llm_engine(self) -> LLMEngine:
        return self.engine

    @cached_property
    def _generation_defaults(self) -> dict[str, Any]:
        return load_generation_defaults(self.engine.model_config, *self._generation)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json says, and SamplingParams' own defaults besides."""
        return SamplingParams(**self._generation_defaults)

    def get_tokenizer(self) -> Any:
        return self.engine.get_tokenizer()

    def reset_prefix_cache(self, **vllms: Any) -> bool:
        """Forget what has been computed: the next prompts find nothing of it. True: it always can."""
        check_keywords("LLM", "reset_prefix_cache", vllms)
        return self.engine.reset_prefix_cache()

    def get_metrics(self) -> list[Metric]:
        """What is counted of the engine, under vLLM's names."""
        return metrics_of(self.engine.stats(), labels_of(self.engine.model_config.model))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: int | Sequence[int] | None = None,
        **vllms: Any,
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs come in the order of the prompts. Threads may call this at the same time:
        the prompts of all are computed together.

        Args:
            prompts: one prompt or a list; a prompt is text, token ids (numpy's, too) or {"prompt_token_ids": [...]}.
            sampling_params: one for all prompts, or a list with one for each.
            use_tqdm: show a progress bar, where it can be seen.
            lora_request: the adapter that answers: one for all prompts or one for each; None: the model itself.
            priority: a number for all prompts or one for each, the lowest served first; needs policy="priority".
            vllms: further keywords of vLLM's, which must be None.

        Raises:
            ValueError: a prompt or its parameters cannot be served; then no prompt of this call is.
        """
        check_keywords("LLM", "generate", vllms)
        prompt_list = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        is_list = isinstance(sampling_params, Sequence)
        params_list: Any = sampling_params if is_list else [sampling_params] * len(prompt_list)
        one_rank = [priority or 0] * len(prompt_list)
        priorities = list(priority) if isinstance(priority, Sequence) else one_rank
        adapters = list(lora_request) if isinstance(lora_request, Sequence) else [lora_request] * len(prompt_list)
        for name, given in (
            ("sampling_params must be one or", params_list),
            ("priority must be", priorities),
            ("lora_request must be one or", adapters),
        ):
            if len(given) != len(prompt_list):
                raise ValueError(f"{name} as many as the prompts, got {len(given)} for {len(prompt_list)}")

        request_ids, last_only = list[str](), RequestOutputKind.FINAL_ONLY
        try:
            for prompt, params, rank, lora in zip(prompt_list, params_list, priorities, adapters, strict=True):
                request_ids.append(next_unused("request", self._request_ids, lambda name: self.engine.holds({name})))
                options: dict[str, Any] = {"priority": rank, "lora_request": lora, "output_kind": last_only}
                self.engine.add_request(request_ids[-1], prompt, params, **options)  # type: ignore[arg-type]
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
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **vllms: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list, in the format of the model's chat template.

        Without sampling_params it draws by get_default_sampling_params().

        Args:
            messages: each is {"role": ..., "content": ...}, with text or a list of {"type": "text", "text": ...}.
            chat_template: another template than the model's own, in Jinja.
            chat_template_content_format: "auto" or "string": a template gets the text of a message's parts, joined.
            add_generation_prompt: end the prompt with the beginning of an answer.
            continue_final_message: end it inside the last message, which the model goes on with; then no beginning.
            tools: what the template shows the model, each {"type": "function", "function": {"name": …, …}}. Its
                calls come as text; a parser of folovllm.serving.tool_parsers reads them.
            chat_template_kwargs: the template's own variables.
        """
        check_keywords("LLM", "chat", vllms)
        check_argument("chat_template_content_format", chat_template_content_format)
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            conversation_to_prompt(
                self.engine.tokenizer,
                conversation,
                chat_template=self._chat_template if chat_template is None else chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
                tools=tools,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=priority, lora_request=lora_request)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None, **vllms: Any,
    ) -> list[BeamSearchOutput]:  # fmt: skip
        """The `beam_width` best continuations of each prompt, best first.

        They are ranked as Hugging Face does: by the log-probability of what was generated, divided by its length to
        the power of length_penalty.

        Raises:
            ValueError: a wrong value, or beams that do not fit into the KV cache.
        """
        check_keywords("LLM", "beam_search", vllms)
        outputs = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm, lora_request=lora_request)
        return [to_output(output, self.engine.tokenizer) for output in outputs]

    def _run(self, request_ids: list[str], *, show_progress: bool) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        unfinished = set(request_ids)
        counter = self.engine.core.tokens
        before = counter.output_tokens
        with _progress(enabled=show_progress) as progress:
            task = progress.add_task("generating", total=len(request_ids), speed="")
            while unfinished:
                for output in self.engine.step_for(unfinished):
                    finished[output.request_id] = output
                    unfinished.discard(output.request_id)
                    progress.advance(task)
                elapsed, num_tokens = progress.tasks[0].elapsed, counter.output_tokens - before
                progress.update(task, speed=f"{num_tokens / elapsed:.1f} tokens/s" if elapsed else "")
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
