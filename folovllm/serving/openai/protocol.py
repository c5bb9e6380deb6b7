"""The bodies of requests, field by field. A field that is not here is refused, unless it changes no answer.

vLLM: entrypoints/openai/chat_completion/protocol.py, entrypoints/openai/completion/protocol.py
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from folovllm.serving.openai.describe import describe_fields

_T = TypeVar("_T")
Listed = Annotated[list[_T], Field(fail_fast=True)]
"""One entry of a wrong type is enough: the others are not looked at."""
TokenIds = Listed[int]


# Fields that change no answer of this engine, with the values of which that is true; none: of any. null always is one.
CHANGES_NOTHING: dict[str, list[Any]] = {
    # a client's own bookkeeping
    "user": [],
    "metadata": [],
    "service_tier": [],
    "prompt_cache_key": [],
    "safety_identifier": [],
    "prompt_cache_retention": [],
    "store": [False],
    "verbosity": ["medium"],
    # what this engine does anyway
    "modalities": [["text"]],
    "include_reasoning": [True],
    "mm_processor_kwargs": [{}],
    "media_io_kwargs": [{}],
    "vllm_xargs": [{}],
    "logits_processors": [[]],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "spaces_between_special_tokens": [],
    "suffix": [""],
    "documents": [[]],
    # without tools there is nothing to choose; a chat request has the fields themselves
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "parallel_tool_calls": [],
    # null alone: they would change the answer, and the engine does not have them
    **{
        name: [None]
        for name in (
            "truncate_prompt_tokens", "kv_transfer_params", "thinking_token_budget", "audio", "prediction",
            "web_search_options", "previous_response_id", "conversation", "guided_json", "guided_regex",
            "guided_choice", "guided_grammar", "prompt_embeds",
        )
    },
}  # fmt: skip


def without_what_changes_nothing(body: Any, kind: type[BaseModel]) -> Any:
    """A decoded body for a route that takes `kind`, without the fields that it may be sent and need not know."""
    if not isinstance(body, dict):
        return body
    return {
        name: value for name, value in body.items() if name in kind.model_fields or not _changes_nothing(name, value)
    }


def _changes_nothing(name: str, value: Any) -> bool:
    return value is None or (name in CHANGES_NOTHING and (not CHANGES_NOTHING[name] or value in CHANGES_NOTHING[name]))


class Body(BaseModel):
    """Values have the type that they are documented with: "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), json_schema_extra=describe_fields)


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """Exactly one of them."""

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Listed[str] | None = None
    grammar: str | None = None
    disable_additional_properties: bool = True


class Sampling(Body):
    """What both kinds of completions share. None is "not given": the model's own default, or vLLM's."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Listed[str] | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    # vLLM's own
    best_of: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Listed[str] | None = None
    allowed_token_ids: TokenIds | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = None
    priority: int = 0
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions"""

    prompt: str | TokenIds | Listed[str] | Listed[TokenIds]
    max_tokens: int | None = 16
    logprobs: int | None = None
    add_special_tokens: bool = True

    @property
    def is_one(self) -> bool:
        """Whether it is one prompt, and no list of them."""
        return isinstance(self.prompt, str) or bool(self.prompt and isinstance(self.prompt[0], int))

    @property
    def num_prompts(self) -> int:
        return 1 if self.is_one else len(self.prompt)


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str
    arguments: str


class ToolCall(Body):
    index: int | None = None
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """`content` is text, or text in parts; null beside `tool_calls`, as the assistant's answers have it."""

    role: str
    content: str | Listed[TextPart] | None = None
    name: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # What answers have beside that, for clients send them back as they got them.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[None] | None = Field(None, max_length=0)


class Function(Body):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class ChatRequest(Sampling):
    """POST /v1/chat/completions"""

    messages: Listed[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    echo: Literal[False] | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a conversation as the model reads it."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[Message] | None = None
    tools: Listed[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(Body):
    """POST /detokenize"""

    model: str | None = None
    tokens: TokenIds
