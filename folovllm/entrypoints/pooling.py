"""LLM's methods for models whose answer is a vector, and what becomes of pairs of texts.

    a model that embeds       query ─▶ vector, document ─▶ vector        score: the cosine of the two
    a cross-encoder           query and document in one prompt ─▶ score

vLLM: entrypoints/pooling/offline.py, entrypoints/pooling/scoring/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from folovllm.entrypoints.chat_template import conversation_to_prompt
from folovllm.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from folovllm.pooling_params import PoolerConfig, PoolingParams, PoolingTask
from folovllm.utils.checks import wrong

if TYPE_CHECKING:
    from folovllm.engine.input_processor import Prompt
    from folovllm.engine.llm_engine import LLMEngine

ManyParams = PoolingParams | Sequence[PoolingParams] | None
Texts = str | Sequence[str]


class PoolingMethods:
    """`options` of each are those of generate(): use_tqdm, priority, ..."""

    engine: LLMEngine
    _chat_template: str | None

    def generate(self, prompts: Any, sampling_params: Any = None, **options: Any) -> list[RequestOutput]:
        raise NotImplementedError  # LLM's

    def encode(
        self, prompts: Prompt | Sequence[Prompt], pooling_params: ManyParams = None, *,
        pooling_task: PoolingTask | None = None, **options: Any,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """The vector of each prompt, in the order of the prompts.

        Raises:
            ValueError: the model draws tokens, or its task is another; see also generate().
        """
        params = PoolingParams(task=pooling_task) if pooling_params is None else pooling_params
        for each in params if isinstance(params, Sequence) else [params]:
            if pooling_task is not None and each.task not in (None, pooling_task):
                raise wrong("task", f"be {pooling_task!r} here", each.task)
        pooler = self.engine.config.pooler_config
        if pooler is not None and pooling_task not in (None, pooler.task):
            raise wrong("pooling_task", f"be {pooler.task!r} for this model", pooling_task)
        return [PoolingRequestOutput.of(each) for each in self.generate(prompts, params, **options)]

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling_params: ManyParams = None, **options: Any
    ) -> list[PoolingRequestOutput]:
        """The embedding of each prompt, `outputs.embedding`. Prompts are taken as they are: an instruction that the
        model wants before a query is the caller's."""
        return self.encode(prompts, pooling_params, pooling_task="embed", **options)

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, pooling_params: ManyParams = None, **options: Any
    ) -> list[PoolingRequestOutput]:
        """The probability of each label for each prompt, `outputs.probs`."""
        return self.encode(prompts, pooling_params, pooling_task="classify", **options)

    def score(
        self, data_1: Texts, data_2: Texts, /, *, pooling_params: PoolingParams | None = None,
        chat_template: str | None = None, **options: Any,
    ) -> list[PoolingRequestOutput]:  # fmt: skip
        """How well the texts of each pair go together, `outputs.score`: one text with each of many, or with its own.

        chat_template: writes a cross-encoder's prompt, of messages with the roles query and document.
        """
        pairs = TextPairs(self.engine.config.pooler_config, data_1, data_2)
        template = self._chat_template if chat_template is None else chat_template
        outputs = self.encode(pairs.prompts(self.engine.get_tokenizer(), template), pooling_params, **options)
        return pairs.scores(outputs)


class TextPairs:
    """Raises ValueError: the model scores no pairs, or the texts make none."""

    def __init__(self, pooler: PoolerConfig | None, data_1: Texts, data_2: Texts) -> None:
        firsts, seconds = ([each] if isinstance(each, str) else list(each) for each in (data_1, data_2))
        if pooler is None or not (pooler.task == "embed" or pooler.is_scorer):
            has = "draws tokens" if pooler is None else f"has {pooler.size} labels"
            raise ValueError(f"score needs a model that embeds, or a classifier of one label: this one {has}")
        if not seconds or len(firsts) not in (1, len(seconds)):
            must = "be one text, or as many as the second ones, of which there is at least one"
            raise ValueError(f"data_1 must {must}, got {len(firsts)} for {len(seconds)}")
        self.is_scorer, self.num_firsts = pooler.is_scorer, len(firsts)
        self.firsts, self.seconds = firsts, seconds

    def prompts(self, tokenizer: Any, template: str | None, **variables: Any) -> list[Prompt]:
        """template: of a cross-encoder, with these variables; None: the tokenizer's own where it knows the two roles,
        else the texts follow one another as the tokenizer joins two."""
        if not self.is_scorer:
            return [*self.firsts, *self.seconds]
        own = str(getattr(tokenizer, "chat_template", None) or "")
        template = template or (own if "query" in own and "document" in own else None)
        pairs = zip(self.firsts * (len(self.seconds) // self.num_firsts), self.seconds, strict=True)
        if template is None:
            return [{"prompt_token_ids": tokenizer(one, text_pair=other)["input_ids"]} for one, other in pairs]
        options: dict[str, Any] = {
            "chat_template": template,
            "chat_template_kwargs": variables,
            "add_generation_prompt": False,
        }
        return [
            conversation_to_prompt(
                tokenizer, [{"role": "query", "content": one}, {"role": "document", "content": other}],
                add_special_tokens=True, **options,
            )
            for one, other in pairs
        ]  # fmt: skip

    def scores(self, outputs: list[PoolingRequestOutput]) -> list[PoolingRequestOutput]:
        """One for each pair, of the outputs of all prompts."""
        if self.is_scorer:
            return outputs
        ones, others = outputs[: self.num_firsts], outputs[self.num_firsts :]
        return [_cosine(one, other) for one, other in zip(ones * (len(others) // len(ones)), others, strict=True)]


def _cosine(one: PoolingRequestOutput, other: PoolingRequestOutput) -> PoolingRequestOutput:
    a, b = (np.array(each.outputs.data) for each in (one, other))
    score = float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
    tokens, cached = one.prompt_token_ids + other.prompt_token_ids, one.num_cached_tokens + other.num_cached_tokens
    return PoolingRequestOutput(f"{one.request_id}_{other.request_id}", PoolingOutput([score]), tokens, cached)
