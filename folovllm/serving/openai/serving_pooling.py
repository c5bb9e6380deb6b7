"""POST /v1/embeddings, /classify, /v1/score and /v1/rerank. vLLM: entrypoints/pooling/"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from fastapi import FastAPI, Request, Response

from folovllm.entrypoints.chat_template import check_characters
from folovllm.entrypoints.pooling import TextPairs, Texts
from folovllm.outputs import PoolingRequestOutput, RequestOutput
from folovllm.pooling_params import PoolingParams
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.formatting import encoded, head, usage
from folovllm.serving.openai.middleware import bearer
from folovllm.serving.openai.protocol import ClassifyRequest, EmbeddingRequest, Pooling, RerankRequest, ScoreRequest
from folovllm.serving.openai.serving_engine import ServingEngine
from folovllm.serving.openai.streams import made, unless_gone

Fields = dict[str, Any]


class PoolingServing:
    """Each method takes a body and its client's key, and returns the answer as JSON. Raises APIError."""

    def __init__(self, serving: ServingEngine) -> None:
        self.serving, self.pooler = serving, serving.llm.engine.config.pooler_config

    async def embeddings(self, body: EmbeddingRequest, key: str) -> bytes:
        def entry(output: RequestOutput) -> Fields:
            vector: Any = output.pooling_output
            if body.encoding_format == "base64":  # float32, the lowest byte first
                vector = b64encode(array("f", vector)).decode()
            return {"object": "embedding", "embedding": vector}

        params = PoolingParams(body.dimensions, body.use_activation, "embed")
        return await self._answer(body, key, "embd", params, self._inputs(body), lambda got: _data(map(entry, got)))

    async def classify(self, body: ClassifyRequest, key: str) -> bytes:
        labels = self.pooler.labels if self.pooler is not None else ()

        def entry(output: RequestOutput) -> Fields:
            probs = output.pooling_output or []
            label = labels[probs.index(max(probs))] if labels else None
            return {"label": label, "probs": probs, "num_classes": len(probs)}

        params = PoolingParams(use_activation=body.use_activation, task="classify")
        return await self._answer(body, key, "classify", params, self._inputs(body), lambda got: _data(map(entry, got)))

    async def score(self, body: ScoreRequest, key: str) -> bytes:
        def entries(scores: list[float]) -> Fields:
            return _data({"object": "score", "score": score} for score in scores)

        return await self._scored(body, key, "score", body.queries, body.documents, entries)

    async def rerank(self, body: RerankRequest, key: str) -> bytes:
        def entries(scores: list[float]) -> Fields:
            best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: body.top_n or None]
            found = zip(best, [body.documents[at] for at in best], [scores[at] for at in best], strict=True)
            return {
                "results": [{"index": at, "document": {"text": text}, "relevance_score": s} for at, text, s in found]
            }

        return await self._scored(body, key, "rerank", body.query, body.documents, entries)

    def _inputs(self, body: ClassifyRequest) -> Callable[[Check], Iterator[Fields]]:
        def prompts(check: Check) -> Iterator[Fields]:
            if not body.inputs:
                raise ValueError("input must not be empty, got []")
            for each in body.inputs:
                special = body.add_special_tokens
                is_text = isinstance(each, str)
                ids = self.serving.tokens_of(each, check, add_special_tokens=special) if is_text else each
                yield {"prompt_token_ids": ids} | ({"prompt": each} if is_text else {})

        return prompts

    async def _scored(
        self, body: ScoreRequest | RerankRequest, key: str, prefix: str, data_1: Texts, data_2: Texts,
        entries: Callable[[list[float]], Fields],
    ) -> bytes:  # fmt: skip
        pairs = await self.serving.prepare(lambda _: TextPairs(self.pooler, data_1, data_2), is_quick=True)

        def prompts(check: Check) -> Iterable[Any]:
            for text in (*pairs.firsts, *pairs.seconds):
                check_characters("the text", text, self.serving.max_characters)
            tokenizer, template = self.serving.cancellable_tokenizer(check), self.serving.options.chat_template
            return pairs.prompts(tokenizer, template, **(body.chat_template_kwargs or {}))

        def finish(outputs: list[RequestOutput]) -> Fields:
            return entries([each.outputs.score for each in pairs.scores([*map(PoolingRequestOutput.of, outputs)])])

        return await self._answer(body, key, prefix, PoolingParams(None, body.use_activation), prompts, finish)

    async def _answer(
        self, body: Pooling, key: str, prefix: str, params: PoolingParams, prompts: Callable[[Check], Iterable[Any]],
        finish: Callable[[list[RequestOutput]], Fields],
    ) -> bytes:  # fmt: skip
        serving = self.serving
        serving.check_model(body.model)
        work = await serving.prepare(lambda check: serving.work(prompts(check), params, body, key, check))
        found = await serving.finished(work)
        start = head(prefix, "list", serving.answers_as(work), body.request_id)
        size = sum(len(output.pooling_output or ()) for output in found)
        answer = {**start, **finish(found), "usage": usage(found)}
        return await made(lambda check: encoded(answer, check), serving.background, size)


def _data(entries: Iterable[Fields]) -> Fields:
    return {"data": [{"index": at, **entry} for at, entry in enumerate(entries)]}


def add_pooling(app: FastAPI, serving: ServingEngine) -> None:
    """Its routes."""
    pooling = PoolingServing(serving)

    async def answered(answer: Coroutine[Any, Any, bytes], request: Request) -> Response:
        return Response(await unless_gone(request.receive, answer), media_type="application/json")

    @app.post("/v1/embeddings", response_model=None, tags=["vectors"])
    async def create_embedding(body: EmbeddingRequest, request: Request) -> Response:
        return await answered(pooling.embeddings(body, bearer(request.scope)), request)

    @app.post("/classify", response_model=None, tags=["vectors"])
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        return await answered(pooling.classify(body, bearer(request.scope)), request)

    @app.post("/v1/score", response_model=None, tags=["vectors"])
    async def score(body: ScoreRequest, request: Request) -> Response:
        return await answered(pooling.score(body, bearer(request.scope)), request)

    @app.post("/v1/rerank", response_model=None, tags=["vectors"])
    async def rerank(body: RerankRequest, request: Request) -> Response:
        return await answered(pooling.rerank(body, bearer(request.scope)), request)
