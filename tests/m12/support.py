"""Requests of a few voices in one engine."""

from __future__ import annotations

import random
from typing import Any

from folovllm import LLMEngine, LoRARequest, SamplingParams
from tests.m6.support import caching_engine

Asked = list[tuple[str | None, list[int], int]]
"""Voice, prompt, tokens."""


def lora_engine(folder: Any, **kwargs: Any) -> LLMEngine:
    defaults = {"enable_lora": True, "max_loras": 4, "max_model_len": 64, "block_size": 4}
    return caching_engine(folder, **{**defaults, **kwargs})


def prompts(seed: int = 0) -> list[list[int]]:
    """That begin alike, so that a voice finds another's blocks where the hash does not tell them apart."""
    rng = random.Random(seed)
    head = [rng.randrange(128) for _ in range(13)]
    return [head[:cut] + [rng.randrange(128) for _ in range(tail)] for cut, tail in ((13, 1), (13, 9), (9, 20), (5, 2))]


def asked_of_all(voices: list[str | None]) -> Asked:
    return [(voice, prompt, 8 + 3 * i) for i, prompt in enumerate(prompts()) for voice in voices]


def serve(
    engine: LLMEngine, asked: Asked, requests: dict[str | None, LoRARequest | None], seed: int = 0, **params: Any
) -> list[list[int]]:
    """The tokens of each, in the order of `asked`; they arrive in another, a few while others run."""
    order, rng = list(range(len(asked))), random.Random(seed)
    rng.shuffle(order)
    said: dict[int, list[int]] = {}
    while order or engine.has_unfinished_requests():
        for number in [order.pop() for _ in range(min(len(order), rng.randrange(4)))]:
            voice, prompt, num_tokens = asked[number]
            greedy = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, **params)
            ids = {"prompt_token_ids": prompt}
            engine.add_request(str(number), ids, greedy, lora_request=requests[voice])
        for output in engine.step():
            if output.finished:
                said[int(output.request_id)] = list(output.outputs[0].token_ids)
        engine.scheduler.check_invariants()
    return [said[number] for number in range(len(asked))]
