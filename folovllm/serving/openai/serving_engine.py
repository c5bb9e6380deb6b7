"""ServingEngine: what all endpoints share. A body becomes prompts and parameters, and these become outputs.

    body ──▶ prepare (in a thread: tokens, checks, grammars) ──▶ gate ──▶ generate() for each prompt ──▶ outputs

All that can be wrong with a request is found in `prepare`, and is the client's fault. What goes wrong later is ours.

vLLM: entrypoints/serve/engine/serving.py
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from folovllm.engine.engine_client import EngineClient
from folovllm.engine.input_processor import InputProcessor, ProcessedInputs
from folovllm.entrypoints.chat_template import check_characters, conversation_to_prompt
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.errors import ModelLoadError, NoTokenLeftError
from folovllm.lora.request import LoRARequest
from folovllm.outputs import RequestOutput
from folovllm.pooling_params import PoolingParams
from folovllm.sample.structured.grammars import GrammarError
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.serving import reasoning
from folovllm.serving.openai.adapters import Adapters
from folovllm.serving.openai.background import PREPARE_SECONDS, Background, CancellableTokenizer, Check, within
from folovllm.serving.openai.ended import Observer, log_request, watched
from folovllm.serving.openai.errors import APIError, failed, refused
from folovllm.serving.openai.gate import Gate, shutting_down
from folovllm.serving.openai.longest_token import characters_a_token
from folovllm.serving.openai.metrics import Metrics, ObservedRequest
from folovllm.serving.openai.middleware import salt_for
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.openai.protocol import ChatRequest, Pooling, Sampling, TokenizeRequest, Tool
from folovllm.serving.openai.streams import merged
from folovllm.serving.openai.token_bytes import TokenBytes
from folovllm.serving.openai.tool_use import arguments_of
from folovllm.serving.tool_parsers.formats import get_tool_parser, parser_of_template
from folovllm.utils.checks import check_utf8

_T = TypeVar("_T")
_NOT_SHOWN = {"function": {"strict"}}
"""Of a tool: a word to the server, which no model has learnt."""


@dataclass(slots=True)
class ServeContext:
    """A request that the engine will take: every prompt, checked, and the parameters of all as they were asked for."""

    prompts: list[ProcessedInputs]
    params: SamplingParams
    priority: int
    output_kind: RequestOutputKind
    lora_request: LoRARequest | None
    drop_tokens: bool = False
    """What is generated is not given out: the prompt was asked about."""


class ServingEngine:
    """One engine, and what is between it and the routes."""

    def __init__(self, llm: EngineClient, options: ServerOptions) -> None:
        self.llm, self.options, self.model_name = llm, options, options.names[0]
        self.created = int(time.time())
        self.adapters = Adapters(llm.engine.input_processor, options.names, options.lora_modules)
        self.gate = Gate(llm, options.max_queue)
        self.metrics = Metrics(llm, self.model_name, self.gate)
        self.observers = list[Observer]()
        if options.enable_log_requests:
            self.observers.append(partial(log_request, options.max_log_len))
        self.spans = None
        if options.otlp_traces_endpoint is not None:
            from folovllm.serving.openai.spans import Spans  # the extra `otel`

            self.spans = Spans(options.otlp_traces_endpoint, self.model_name)
            self.observers.append(self.spans)
        self.tokenizer = copy.deepcopy(llm.engine.tokenizer)  # apart from the engine's
        self.token_bytes = TokenBytes(self.tokenizer)
        if self.tokenizer is not None:
            # A tokenizer.json may ask for padding or truncation, which the first call takes away. Later ones change
            # nothing, and only a change would meet another thread's call and fail ("Already borrowed").
            self.tokenizer("")
        if options.chat_template is not None:
            if self.tokenizer is None:
                raise ValueError("chat_template needs a tokenizer, but skip_tokenizer_init leaves none")
            self.tokenizer.chat_template = options.chat_template
        template = _template_for_tools(self.tokenizer)
        form = options.tool_call_parser
        self.tool_parser = parser_of_template(template) if form is None else get_tool_parser(form)
        self.reasoning_parser = options.reasoning_parser or reasoning.parser_of_template(template)
        self.added_tokens = frozenset(self.tokenizer.get_added_vocab() if self.tokenizer is not None else ())
        special = set(getattr(self.tokenizer, "all_special_tokens", ()))
        self.thinks_in_special_tokens = self.reasoning_parser is not None and reasoning.END in special
        a_token = characters_a_token(self.tokenizer)
        most_tokens = llm.engine.max_model_len - (llm.engine.config.pooler_config is None)  # one is to be drawn
        self.max_characters = None if a_token is None else a_token * most_tokens
        named = options.generation_config, options.override_generation_config
        self.defaults = load_generation_defaults(llm.engine.model_config, *named)
        self.background = Background()
        self.clock = time.monotonic

    async def prepare(self, make: Callable[[Check], _T], *, is_quick: bool = False) -> _T:
        """Run `make` beside the event loop, unless it takes less time than to wake another thread; its ValueError is
        the client's. It ends early when the client leaves, when it takes too long, or when the server shuts down.
        Raises APIError."""
        check_time = within(PREPARE_SECONDS, self.clock)

        def check() -> None:
            if self.gate.draining:
                raise shutting_down()
            check_time()

        try:
            return make(check) if is_quick else await self.background.run(make, check)
        except ValueError as error:
            raise refused(error) from error

    def check_model(self, name: str | None) -> LoRARequest | None:
        """The adapter of that name; None: the model itself is meant. Raises APIError: there is neither."""
        adapter = self.adapters.get(name)
        if name is not None and name not in self.options.names and adapter is None:
            adapters = "".join(f", or its adapter {each!r}" for each in self.adapters.requests)
            said = f"model must be {self.model_name!r}, the one that is served{adapters}, got {name!r}"
            raise APIError(404, said, param="model", code="model_not_found")
        return adapter

    def answers_as(self, work: ServeContext) -> str:
        """The model's name in an answer."""
        return self.model_name if work.lora_request is None else work.lora_request.lora_name

    def work(
        self, prompts: Iterable[Any], params: SamplingParams | PoolingParams, body: Sampling | Pooling, key: str,
        check: Check, form_of: str | None = None, thinks: reasoning.Thinks = "no",
    ) -> ServeContext:  # fmt: skip
        """Check all of it against the engine, tokens and grammars included; the first prompt that is wrong ends it.

        form_of: the field that params.structured_outputs come from, where it is none of that name.
        thinks: whether thoughts may come before that form.

        Raises:
            ValueError: what the engine would refuse, by name.
        """
        engine, inputs = self.llm.engine, self.llm.engine.input_processor
        if body.priority != 0 and engine.config.scheduler_config.policy != "priority":
            raise ValueError(
                f"priority must be 0 under policy 'fcfs', got {body.priority}; serve with --policy priority"
            )
        if not -(2**31) <= body.priority < 2**31:
            raise ValueError(f"priority must be a number of 32 bits, got {body.priority}")
        if body.cache_salt == "":
            raise ValueError("cache_salt must not be empty, got ''")
        salt = salt_for(key, body.cache_salt) if self.options.salt_by_key and key else body.cache_salt
        salted = {} if salt is None else {"cache_salt": salt}

        def asking() -> Iterator[dict[str, Any]]:
            for prompt in prompts:
                check()
                yield {"prompt": prompt, **salted} if isinstance(prompt, str) else prompt | salted

        checks = InputProcessor(self.cancellable_tokenizer(check), inputs.vocab_size, engine.config, inputs.grammars)
        try:
            if thinks != "no" and isinstance(params, SamplingParams) and params.structured_outputs is not None:
                inputs.grammars.compile(params.structured_outputs)  # what is wrong is said of the form as it was given
                form = reasoning.after_thoughts(params.structured_outputs, thinks, self.added_tokens)
                params.structured_outputs = form
            ready = list(checks.check(asking(), params))
        except ValueError as error:
            if str(error).startswith("extra_args"):
                raise ValueError(f"vllm_xargs{str(error).removeprefix('extra_args')}") from error
            asked = "response_format" if body.response_format is not None else form_of
            if asked is not None and str(error).startswith("structured_outputs"):
                raise ValueError(f"{asked} cannot be kept: {error}") from error
            raise
        kind = RequestOutputKind.CUMULATIVE if body.stream else RequestOutputKind.FINAL_ONLY
        drawn = params if isinstance(params, SamplingParams) else ready[0].params
        return ServeContext(ready, drawn, body.priority, kind, self.check_model(body.model))

    def cancellable_tokenizer(self, check: Check) -> Any | None:
        """The tokenizer, for work that asks before each text."""
        return None if self.tokenizer is None else CancellableTokenizer(self.tokenizer, check)

    def conversation(
        self, body: ChatRequest | TokenizeRequest, check: Check, tools: list[Tool] | None
    ) -> dict[str, Any]:
        """The messages of a body, and the tools that the model is to know, as a prompt.

        Raises ValueError: a template that is not trusted, or will not do.
        """
        if body.chat_template is not None and not self.options.trust_chat_template:
            raise ValueError(
                "chat_template must be null: it is a program, and this server runs none of its clients'; serve with "
                "--trust-request-chat-template to take it"
            )
        messages = [_as_said(message.model_dump(exclude_none=True)) for message in body.messages or ()]
        for number, message in enumerate(messages):
            if "content" not in message:
                raise ValueError(f"messages[{number}].content must be text, or a list of text parts, got null")
        return conversation_to_prompt(
            self.cancellable_tokenizer(check),
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template=body.chat_template,
            chat_template_kwargs={**(self.options.default_chat_template_kwargs or {}), **_variables(body)},
            tools=None if not tools else [tool.model_dump(exclude_none=True, exclude=_NOT_SHOWN) for tool in tools],
            add_special_tokens=bool(body.add_special_tokens),
            max_characters=self.max_characters,
        )

    def tokens_of(self, text: str, check: Check, *, add_special_tokens: bool) -> list[int]:
        """Raises ValueError: there is no tokenizer, or the text is none."""
        tokenizer = self.cancellable_tokenizer(check)
        if tokenizer is None:
            raise ValueError("prompt must be token ids, got text: skip_tokenizer_init leaves no tokenizer")
        check_utf8("prompt", text)
        check_characters("prompt", text, self.max_characters)
        return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    async def outputs(self, work: ServeContext) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(which prompt, its output so far), as they come. Of each prompt only the newest output waits.

        Leaving early aborts all of them.

        Raises:
            APIError: the queue is full, the server shuts down, or the engine could not finish.
        """
        with self.gate.admit(len(work.prompts)):
            observed = ObservedRequest(self.metrics, work.prompts)
            streams = [self._one(work, place) for place in range(len(work.prompts))]
            with watched(self.observers, work.prompts) as newest:
                async with aclosing(streams[0] if len(streams) == 1 else merged(streams)) as found:
                    async for place, output in found:
                        observed.see(place, output)
                        newest[place] = output
                        yield place, output

    async def finished(self, work: ServeContext) -> list[RequestOutput]:
        """The last output of each prompt, in their order. Raises APIError: as outputs()."""
        newest = dict[int, RequestOutput]()
        async with aclosing(self.outputs(work)) as outputs:
            async for place, output in outputs:
                newest[place] = output
        return [newest[place] for place in sorted(newest)]

    async def _one(self, work: ServeContext, place: int) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        try:
            stream = self.llm.generate(
                work.prompts[place], priority=work.priority, output_kind=work.output_kind,
                lora_request=work.lora_request,
            )  # fmt: skip
            async with aclosing(stream) as outputs:
                async for output in outputs:
                    yield place, output
        except (NoTokenLeftError, GrammarError, ModelLoadError) as error:  # an adapter's folder has gone
            raise refused(error) from error
        except Exception as error:
            self.metrics.failed()
            raise failed(error) from error

    def close(self) -> None:
        self.background.close()
        if self.spans is not None:
            self.spans.close()


def _template_for_tools(tokenizer: Any) -> str:
    """Empty where there is none. A checkpoint may have several, by names."""
    try:
        return str(tokenizer.get_chat_template(tools=[]))
    except (AttributeError, ValueError):
        return ""


def _as_said(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates take it. What an assistant answered may have been cut at any place."""
    if (thoughts := message.get("reasoning", message.get("reasoning_content"))) is not None:
        message["reasoning"] = message["reasoning_content"] = thoughts  # templates know either
    if (refusal := message.pop("refusal", None)) is not None or message["role"] == "assistant":
        message.setdefault("content", refusal or "")
    if isinstance(message.get("content"), list):
        message["content"] = [{"type": "text", "text": part["text"]} for part in message["content"]]
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
    return message


def _variables(body: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """The template's variables beside the messages."""
    effort = getattr(body, "reasoning_effort", None)
    return {**({} if effort is None else {"reasoning_effort": effort}), **(body.chat_template_kwargs or {})}
