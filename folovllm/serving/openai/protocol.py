"""The bodies of requests, field by field, and how much each may hold.

A field that no one here knows is left out at every depth, with a line in the log, or refused. What would change the
answer, and cannot be done, always is refused.

vLLM: entrypoints/openai/chat_completion/protocol.py, entrypoints/openai/completion/protocol.py
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from folovllm.serving.openai.describe import describe_fields
from folovllm.utils.checks import nearest_name

_T = TypeVar("_T")
Listed = Annotated[list[_T], Field(fail_fast=True)]
"""One entry of a wrong type is enough: the others are not looked at."""
TokenIds = Listed[int]
Words = Annotated[str, Field(max_length=1024)]
MAX_FIELDS = 64  # of one object
MAX_JSON = 2**16  # characters of a schema, or of a template's variables
MAX_NAME = 64  # characters of a name that is compared with others


def at_most(entries: int) -> Any:
    """Each limit is far above what a request needs, and so low that what is under it costs milliseconds."""
    return Field(max_length=entries, fail_fast=True)


def _bounded(given: Any) -> Any:
    """Its characters without punctuation are counted: all but a text is one."""
    size, waiting = 0, [given]
    while waiting and size <= MAX_JSON:
        part = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        if isinstance(part, (list, dict)):
            waiting += part
        if isinstance(part, dict):
            waiting += part.values()
    if size > MAX_JSON:
        raise PydanticCustomError("too_much_json", "have less", {"max_length": MAX_JSON})
    return given


FreeJson = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""An object whose names are the client's own."""


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
    "include_obfuscation": [],
    "cache_control": [],
    "guided_decoding_backend": [],
    # what clients make of an answer, and send back with it
    "annotations": [],
    "parsed": [],
    "parsed_arguments": [],
    "provider_specific_fields": [],
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
            "web_search_options", "conversation", "prompt_embeds", "structural_tag", "whitespace_pattern",
            "disable_any_whitespace", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
            "guided_json_object", "guided_decoding", "guided_whitespace_pattern",
        )
    },
}  # fmt: skip


class Body(BaseModel):
    """Values have the type that they are documented with: "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), json_schema_extra=describe_fields)

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, given: Any, info: ValidationInfo) -> Any:
        """Without the fields that need not be known. Those that are left are refused, for they are none of cls.

        info.context: is called with the name of a field that is left out; None: it is refused."""
        if not isinstance(given, dict):
            return given
        if len(given) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "have at most {most} fields", {"most": MAX_FIELDS})
        known, left = _names(cls), set()
        for name in given:
            if name in known:
                continue
            if not _changes_nothing(name, given[name]):
                if info.context is None or name in CHANGES_NOTHING or (issubclass(cls, Request) and name in _asked()):
                    continue
                if near := nearest_name(name, known) if len(name) <= MAX_NAME else None:
                    raise PydanticCustomError("near", "{name}", {"name": name, "near": near})
                info.context(name)
            left.add(name)
        return {name: value for name, value in given.items() if name not in left} if left else given


class Request(Body):
    """The whole of a body. What other requests may ask for, and this one not, is never left out in silence."""


def _changes_nothing(name: str, value: Any) -> bool:
    return value is None or (name in CHANGES_NOTHING and (not CHANGES_NOTHING[name] or value in CHANGES_NOTHING[name]))


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """As they are written in JSON."""
    names = [field.validation_alias or name for name, field in kind.model_fields.items()]
    return frozenset(str(each) for name in names for each in (getattr(name, "choices", None) or [name]))


@cache
def _asked(kind: type[BaseModel] = Request) -> frozenset[str]:
    """Fields of every kind of request."""
    return _names(kind).union(*map(_asked, kind.__subclasses__()))


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    name: str
    description: str | None = None
    schema_: FreeJson = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """Exactly one of them."""

    json_: Annotated[str, Field(max_length=MAX_JSON)] | FreeJson | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Annotated[str, Field(max_length=4096)] | None = None
    choice: Annotated[list[Words], at_most(1024)] | None = None
    grammar: str | None = None
    disable_additional_properties: bool = True


class Sampling(Request):
    """What both kinds of completions share. None is "not given": the model's own default, or vLLM's."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: Words | Annotated[list[Words], at_most(64)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
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
    stop_token_ids: Annotated[list[int], at_most(128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[Annotated[str, Field(max_length=256)]], at_most(128)] | None = None
    allowed_token_ids: Annotated[list[int], at_most(1024)] | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = None
    priority: int = 0
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    request_id: Words | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions"""

    prompt: str | TokenIds | Annotated[list[str], at_most(256)] | Annotated[list[TokenIds], at_most(256)]
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
    """`logprobs`: as parts of answers have them, for clients send them back as they got them."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))
    logprobs: list[Any] | None = None


Content = str | Annotated[list[TextPart], at_most(1024)]


class FunctionCall(Body):
    name: str
    arguments: str


class ToolCall(Body):
    index: int | None = None
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """`content` may be null in an answer: beside calls, thoughts or a refusal, or where nothing was said."""

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], at_most(128)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


Messages = Annotated[list[Message], at_most(4096)]


class Function(Body):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: FreeJson | None = None
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

    messages: Messages
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: FreeJson | None = None
    echo: Literal[False] | None = None
    tools: Annotated[list[Tool], at_most(128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class TokenizeRequest(Request):
    """POST /tokenize: a text, or a conversation as the model reads it."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Annotated[list[Tool], at_most(128)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: FreeJson | None = None
    return_token_strs: bool = False


class DetokenizeRequest(Request):
    """POST /detokenize"""

    model: str | None = None
    tokens: Annotated[list[int], at_most(2**18)]
