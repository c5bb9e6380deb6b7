"""The bodies of requests whose answer is a vector.

vLLM: entrypoints/pooling/ (embed/protocol.py, classify/protocol.py, scoring/protocol.py)
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field

from folovllm.serving.openai.body import FreeJson, TokenIds, WholeBody, Words, at_most, described

Texts = str | Annotated[list[str], at_most(256)]


class PoolingBody(WholeBody):
    """What all of them share."""

    stream: ClassVar[None] = None
    response_format: ClassVar[None] = None

    model: str | None = None
    use_activation: bool | None = None
    cache_salt: str | None = None
    priority: int = 0
    request_id: Words | None = None


class ClassifyRequest(PoolingBody):
    """POST /classify"""

    model_config = described(input=["It was a fine day.", "It rained."])

    input: str | TokenIds | Annotated[list[str], at_most(256)] | Annotated[list[TokenIds], at_most(256)]
    add_special_tokens: bool = True

    @property
    def inputs(self) -> list[str | list[int]]:
        is_one = isinstance(self.input, str) or bool(self.input and isinstance(self.input[0], int))
        return [self.input] if is_one else list(self.input)  # type: ignore[list-item, arg-type]


class EmbeddingRequest(ClassifyRequest):
    """POST /v1/embeddings"""

    model_config = described(input=["Once upon a time", "It rained."], encoding_format="float")

    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"


class PairsBody(PoolingBody):
    chat_template_kwargs: FreeJson | None = None
    instruction: str | None = None


class ScoreRequest(PairsBody):
    """POST /v1/score"""

    model_config = described(queries="What is a cat?", documents=["An animal.", "A stone."])

    queries: Texts = Field(validation_alias=AliasChoices("queries", "data_1", "text_1"))
    documents: Texts = Field(validation_alias=AliasChoices("documents", "data_2", "text_2", "items"))


class RerankRequest(PairsBody):
    """POST /v1/rerank"""

    model_config = described(query="What is a cat?", documents=["An animal.", "A stone."], top_n=1)

    query: str
    documents: Annotated[list[str], at_most(256)]
    top_n: int = Field(0, ge=0)
