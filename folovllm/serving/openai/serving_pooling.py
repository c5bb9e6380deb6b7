"""POST /v1/embeddings, /classify, /v1/score and /v1/rerank.

vLLM: entrypoints/pooling/embed/serving.py, classify/serving.py, scoring/serving.py
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from folovllm.entrypoints.chat_template import check_characters
from folovllm.entrypoints.pooling import TextPairs, Texts
from folovllm.outputs import PoolingRequestOutput, RequestOutput
from folovllm.pooling_params import PoolingParams
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.formatting import encoded, head, usage
from folovllm.serving.openai.pooling_protocol import (
    ClassifyRequest,
    EmbeddingRequest,
    PairsBody,
    PoolingBody,
    RerankRequest,
    ScoreRequest,
)
from folovllm.serving.openai.serving_engine import ServingEngine
from folovllm.serving.openai.streams import made

Prompts = Callable[[Check], Iterable[Any]]


class PoolingServing:
    """Each method takes a body and its client's key, and returns the answer as JSON. Raises APIError."""

    def __init__(self, serving: ServingEngine) -> None:
        self.serving, self.pooler = serving, serving.llm.engine.config.pooler_config

    async def embeddings(self, body: EmbeddingRequest, key: str) -> bytes:
        def vector(output: RequestOutput) -> Any:
            numbers = output.pooling_output or []
            # float32, the lowest byte first
            return b64encode(array("f", numbers)).decode() if body.encoding_format == "base64" else numbers

        def entries(outputs: list[RequestOutput]) -> dict[str, Any]:
            return _data({"object": "embedding", "embedding": vector(output)} for output in outputs)

        params = PoolingParams(body.dimensions, body.use_activation, "embed")
        return await self._answer(body, key, "embd", params, lambda check: self._inputs(body, check), entries)

    async def classify(self, body: ClassifyRequest, key: str) -> bytes:
        labels = self.pooler.labels if self.pooler is not None else ()

        def entry(probs: list[float]) -> dict[str, Any]:
            label = labels[probs.index(max(probs))] if labels else None
            return {"label": label, "probs": probs, "num_classes": len(probs)}

        def entries(outputs: list[RequestOutput]) -> dict[str, Any]:
            return _data(entry(output.pooling_output or []) for output in outputs)

        params = PoolingParams(use_activation=body.use_activation, task="classify")
        return await self._answer(body, key, "classify", params, lambda check: self._inputs(body, check), entries)

    async def score(self, body: ScoreRequest, key: str) -> bytes:
        def entries(scores: list[float]) -> dict[str, Any]:
            return _data({"object": "score", "score": score} for score in scores)

        return await self._scored(body, key, "score", body.queries, body.documents, entries)

    async def rerank(self, body: RerankRequest, key: str) -> bytes:
        def entries(scores: list[float]) -> dict[str, Any]:
            best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: body.top_n or None]
            return {"results": [_ranked(at, body.documents[at], scores[at]) for at in best]}

        return await self._scored(body, key, "rerank", body.query, body.documents, entries)

    def _inputs(self, body: ClassifyRequest, check: Check) -> Iterator[dict[str, Any]]:
        if not body.inputs:
            raise ValueError("input must not be empty, got []")
        for each in body.inputs:
            if isinstance(each, str):
                tokens = self.serving.tokens_of(each, check, add_special_tokens=body.add_special_tokens)
                yield {"prompt": each, "prompt_token_ids": tokens}
            else:
                yield {"prompt_token_ids": each}

    async def _scored(
        self, body: PairsBody, key: str, prefix: str, data_1: Texts, data_2: Texts,
        make: Callable[[list[float]], dict[str, Any]],
    ) -> bytes:  # fmt: skip
        pairs = await self.serving.prepare(lambda _: TextPairs(self.pooler, data_1, data_2), is_quick=True)
        given = {} if body.instruction is None else {"instruction": body.instruction}
        variables = given | (body.chat_template_kwargs or {})

        def prompts(check: Check) -> Iterable[Any]:
            for text in (*pairs.firsts, *pairs.seconds):
                check_characters("the text", text, self.serving.max_characters)
            tokenizer = self.serving.cancellable_tokenizer(check)
            return pairs.prompts(tokenizer, self.serving.options.chat_template, **variables)

        def entries(outputs: list[RequestOutput]) -> dict[str, Any]:
            scored = pairs.scores([*map(PoolingRequestOutput.of, outputs)])
            return make([each.outputs.score for each in scored])

        params = PoolingParams(use_activation=body.use_activation)
        return await self._answer(body, key, prefix, params, prompts, entries)

    async def _answer(
        self, body: PoolingBody, key: str, prefix: str, params: PoolingParams, prompts: Prompts,
        entries: Callable[[list[RequestOutput]], dict[str, Any]],
    ) -> bytes:  # fmt: skip
        serving, newest = self.serving, dict[int, RequestOutput]()
        serving.check_model(body.model)
        work = await serving.prepare(lambda check: serving.work(prompts(check), params, body, key, check))
        async with aclosing(serving.outputs(work)) as outputs:
            async for place, output in outputs:
                newest[place] = output
        found = [newest[place] for place in sorted(newest)]
        start = head(prefix, "list", serving.answers_as(work), body.request_id)
        answer = {**start, **entries(found), "usage": usage(found)}
        size = sum(len(output.pooling_output or ()) for output in found)
        return await made(lambda check: encoded(answer, check), serving.background, size)


def _ranked(index: int, text: str, score: float) -> dict[str, Any]:
    return {"index": index, "document": {"text": text}, "relevance_score": score}


def _data(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"data": [{"index": at, **entry} for at, entry in enumerate(entries)]}
