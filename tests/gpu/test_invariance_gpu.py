"""batch_invariant=True on a GPU: the bits that a request has alone, it has in company, in chunks and from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, LLMEngine, SamplingParams
from tests.gpu.places import Place, on_every_place
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle

ASKED = [
    ([7, 8, 9, 10, 11, 12], SamplingParams(temperature=0, max_tokens=12, logprobs=2)),
    ([7, 8, 9, 10, 11, 12, 13], SamplingParams(seed=1, top_p=0.9, max_tokens=9, logprobs=1)),
    ([i * 7 % 250 for i in range(70)], SamplingParams(seed=2, max_tokens=10, logprobs=1)),
    ([i * 5 % 250 for i in range(150)], SamplingParams(temperature=0, max_tokens=7, logprobs=1)),
]


def make_engine(folder: Path, place: Place, dtype: str, **settings: Any) -> LLMEngine:
    options = {"batch_invariant": True, "num_kv_blocks": 100, "max_num_seqs": 8, "max_model_len": 200, **settings}
    return LLM(str(folder), skip_tokenizer_init=True, dtype=dtype, device=place.device, **options).engine


def serve(engine: LLMEngine, numbers: list[int]) -> list[Any]:
    """Of each: its tokens, and log-probabilities to the last bit."""
    done: dict[str, Any] = {}
    for number in numbers:
        engine.add_request(str(number), *ASKED[number])
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
    assert_idle(engine)
    return [
        (
            done[str(number)].token_ids,
            [{i: lp.logprob.hex() for i, lp in entry.items()} for entry in done[str(number)].logprobs],
        )
        for number in numbers
    ]


@on_every_place
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_has_the_same_bits_alone_and_in_company(
    tmp_path: Path, place: Place, dtype: str, eager: bool
) -> None:
    folder = make_hf_folder(tmp_path, head_dim=64)
    plain = make_engine(
        folder, place, dtype, enforce_eager=eager, enable_chunked_prefill=False, enable_prefix_caching=False
    )
    alone = [serve(plain, [number])[0] for number in range(len(ASKED))]
    company = make_engine(folder, place, dtype, enforce_eager=eager, max_num_batched_tokens=48)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 0]):  # from the second on out of the cache
        assert serve(company, order) == [alone[number] for number in order]
    assert company.stats().prefix_cache_hits > 0
