"""LLM's methods for models whose answer is a vector, and what becomes of pairs of texts.

    a model that embeds       query ─▶ vector, document ─▶ vector        score: the cosine of the two
    a cross-encoder           query and document in one prompt ─▶ score

vLLM: entrypoints/pooling/offline.py, entrypoints/pooling/scoring/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from folovllm.entrypoints.chat_template import conversation_to_prompt
from folovllm.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from folovllm.pooling_params import PoolerConfig, PoolingParams, PoolingTask
from folovllm.utils.checks import check_choice

if TYPE_CHECKING:
    from folovllm.engine.llm_engine import LLMEngine

Outputs = list[PoolingRequestOutput]
ManyParams = PoolingParams | Sequence[PoolingParams] | None
Texts = str | Sequence[str]


class PoolingMethods:
    """`prompts` and `options` of each are those of generate(), and so is what is raised."""

    engine: LLMEngine
    generate: Callable[..., list[RequestOutput]]
    _chat_template: str | None

    def encode(
        self, prompts: Any, pooling_params: ManyParams = None, *, pooling_task: PoolingTask | None = None,
        **options: Any,
    ) -> Outputs:  # fmt: skip
        """The vector of each prompt, in their order."""

        def asked(params: PoolingParams) -> PoolingParams:
            if pooling_task is not None and params.task is not None:
                check_choice("task", params.task, (pooling_task,))
            return replace(params, task=pooling_task or params.task)

        many = [*map(asked, pooling_params)] if isinstance(pooling_params, Sequence) else None
        outputs = self.generate(prompts, many or asked(pooling_params or PoolingParams()), **options)  # type: ignore[arg-type]
        return [*map(PoolingRequestOutput.of, outputs)]

    def embed(self, prompts: Any, *, pooling_params: ManyParams = None, **options: Any) -> Outputs:
        """`outputs.embedding` of each. An instruction that the model wants before a query is the caller's to write."""
        return self.encode(prompts, pooling_params, pooling_task="embed", **options)

    def classify(self, prompts: Any, *, pooling_params: ManyParams = None, **options: Any) -> Outputs:
        """`outputs.probs` of each: the probability of each label."""
        return self.encode(prompts, pooling_params, pooling_task="classify", **options)

    def score(
        self, data_1: Texts, data_2: Texts, /, *, pooling_params: PoolingParams | None = None,
        chat_template: str | None = None, **options: Any,
    ) -> Outputs:  # fmt: skip
        """How well two texts go together, `outputs.score`: one with each of many, or each with its own.
        chat_template: writes a cross-encoder's prompt, of messages with the roles query and document."""
        pairs = TextPairs(self.engine.config.pooler_config, data_1, data_2)
        prompts = pairs.prompts(self.engine.get_tokenizer(), chat_template or self._chat_template)
        return pairs.scores(self.encode(prompts, pooling_params, **options))


class TextPairs:
    """Raises ValueError: the model scores no pairs, or the texts make none."""

    def __init__(self, pooler: PoolerConfig | None, data_1: Texts, data_2: Texts) -> None:
        self.firsts, self.seconds = ([each] if isinstance(each, str) else list(each) for each in (data_1, data_2))
        if pooler is None or (pooler.task == "classify" and pooler.size > 1):
            has = "draws tokens" if pooler is None else f"has {pooler.size} labels"
            raise ValueError(f"score needs a model that embeds, or a classifier of one label: this one {has}")
        self.in_one_prompt, count = pooler.task == "classify", len(self.seconds)
        if not count or len(self.firsts) not in (1, count):
            raise ValueError(f"data_1 must be one text, or as many as data_2 has, got {len(self.firsts)} for {count}")
        self.repeats = count // len(self.firsts)

    def prompts(self, tokenizer: Any, template: str | None, **variables: Any) -> list[Any]:
        """template: of a cross-encoder, with these variables; None: the tokenizer's own where it knows both roles, else
        the texts follow one another as the tokenizer joins two."""
        if not self.in_one_prompt:
            return [*self.firsts, *self.seconds]
        own = str(getattr(tokenizer, "chat_template", None) or "")
        template = template or (own if "query" in own and "document" in own else None)
        pairs = zip(self.firsts * self.repeats, self.seconds, strict=True)
        if template is None:
            return [{"prompt_token_ids": tokenizer(one, text_pair=other)["input_ids"]} for one, other in pairs]
        options: dict[str, Any] = {"chat_template": template, "chat_template_kwargs": variables}
        options |= {"add_special_tokens": True, "add_generation_prompt": False}
        both = ([{"role": "query", "content": one}, {"role": "document", "content": other}] for one, other in pairs)
        return [conversation_to_prompt(tokenizer, each, **options) for each in both]

    def scores(self, outputs: Outputs) -> Outputs:
        """One for each pair, of the outputs of all prompts."""
        if self.in_one_prompt:
            return outputs
        ones, others = outputs[: len(self.firsts)] * self.repeats, outputs[len(self.firsts) :]
        return [_cosine(one, other) for one, other in zip(ones, others, strict=True)]


def _cosine(one: PoolingRequestOutput, other: PoolingRequestOutput) -> PoolingRequestOutput:
    a, b = (np.array(each.outputs.data) for each in (one, other))
    score = float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
    tokens, cached = one.prompt_token_ids + other.prompt_token_ids, one.num_cached_tokens + other.num_cached_tokens
    return PoolingRequestOutput(f"{one.request_id}_{other.request_id}", PoolingOutput([score]), tokens, cached)
