"""The bodies of requests, field by field.

vLLM: entrypoints/openai/chat_completion/protocol.py, entrypoints/openai/completion/protocol.py
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field

from folovllm.serving.openai.body import MAX_JSON, Body, FreeJson, TokenIds, WholeBody, Words, at_most, described


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


class Sampling(WholeBody):
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
    vllm_xargs: FreeJson | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions"""

    model_config = described(prompt="Once upon a time", max_tokens=40, temperature=0.8)

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


class Pooling(WholeBody):
    """What requests share whose answer is a vector."""

    stream: ClassVar[None] = None
    response_format: ClassVar[None] = None

    model: str | None = None
    use_activation: bool | None = None
    cache_salt: str | None = None
    priority: int = 0
    request_id: Words | None = None


class ClassifyRequest(Pooling):
    """POST /classify"""

    model_config = described(input=["It was a fine day.", "It rained."])

    input: str | TokenIds | Annotated[list[str], at_most(256)] | Annotated[list[TokenIds], at_most(256)]
    add_special_tokens: bool = True

    @property
    def inputs(self) -> list[Any]:
        is_one = isinstance(self.input, str) or bool(self.input and isinstance(self.input[0], int))
        return [self.input] if is_one else [*self.input]


class EmbeddingRequest(ClassifyRequest):
    """POST /v1/embeddings"""

    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"


OneOrMany = str | Annotated[list[str], at_most(256)]


class ScoreRequest(Pooling):
    """POST /v1/score"""

    model_config = described(queries="What is a cat?", documents=["An animal.", "A stone."])

    queries: str | Annotated[list[str], at_most(256)] = Field(
        validation_alias=AliasChoices("queries", "data_1", "text_1")
    )
    documents: str | Annotated[list[str], at_most(256)] = Field(
        validation_alias=AliasChoices("documents", "data_2", "text_2")
    )
    chat_template_kwargs: FreeJson | None = None


class RerankRequest(Pooling):
    """POST /v1/rerank"""

    model_config = described(query="What is a cat?", documents=["An animal.", "A stone."], top_n=1)

    query: str
    documents: Annotated[list[str], at_most(256)]
    top_n: int = Field(0, ge=0)
    chat_template_kwargs: FreeJson | None = None


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

    model_config = described(messages=[{"role": "user", "content": "What is prefix caching?"}], max_tokens=60)

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


class TokenizeRequest(WholeBody):
    """POST /tokenize: a text, or a conversation as the model reads it."""

    model_config = described(prompt="Once upon a time")

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


class DetokenizeRequest(WholeBody):
    """POST /detokenize"""

    model_config = described(tokens=[5, 6, 7])

    model: str | None = None
    tokens: Annotated[list[int], at_most(2**18)]
