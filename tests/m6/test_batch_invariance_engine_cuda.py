"""batch_invariant=True in a whole engine on the stand-in for a GPU: the bits that a request has alone, it has in
company."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.outputs import RequestOutput
from tests.fake_cuda import fake_cuda_machine
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fixed_order")]  # interpreted: some seconds
ASKED = [
    ([7, 8, 9, 10, 11, 12], SamplingParams(temperature=0, max_tokens=4, logprobs=2)),
    ([7, 8, 9, 10, 11, 12, 13], SamplingParams(seed=1, top_p=0.9, max_tokens=3)),
    ([i * 7 % 250 for i in range(70)], SamplingParams(seed=2, max_tokens=3, logprobs=1)),
]


def make_engine(oracle: Oracle, **settings: Any) -> LLMEngine:
    options = {
        "batch_invariant": True, "num_kv_blocks": 60, "block_size": 4, "max_num_seqs": 4, "max_model_len": 90,
        "swap_space": 0.001,
    }  # fmt: skip
    return LLM(
        str(oracle.folder), skip_tokenizer_init=True, dtype="float32", device="cuda", **{**options, **settings}
    ).engine


def bits(output: RequestOutput) -> list[Any]:
    """Tokens, and log-probabilities to the last bit."""
    return [
        (c.token_ids, [{i: lp.logprob.hex() for i, lp in entry.items()} for entry in c.logprobs or []])
        for c in output.outputs
    ]


def serve(engine: LLMEngine, numbers: list[int]) -> list[list[Any]]:
    done: dict[str, Any] = {}
    for number in numbers:
        engine.add_request(str(number), *ASKED[number])
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    assert_idle(engine)
    return [bits(done[str(number)]) for number in numbers]


@pytest.mark.exhaustive
def test_alone_and_in_company_with_chunks_and_a_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    oracle = Oracle(tmp_path_factory.mktemp("small"), num_attention_heads=2, num_key_value_heads=1)
    with fake_cuda_machine(total_bytes=2 << 30, num_devices=2):
        plain = make_engine(oracle, enable_chunked_prefill=False, enable_prefix_caching=False)
        assert plain.runner.kv_cache.backend.name == "triton_invariant"
        alone = [serve(plain, [number])[0] for number in range(len(ASKED))]
        company = make_engine(oracle, max_num_batched_tokens=24)
        for order in ([0, 1, 2], [2, 0, 1]):  # the second time from the cache
            assert serve(company, order) == [alone[number] for number in order]
        assert company.stats().prefix_cache_hits > 0
        # Without the mode they do not stay, or all this would prove nothing.
        plain = make_engine(oracle, max_num_batched_tokens=24, batch_invariant=False)
        assert serve(plain, [0, 1, 2]) != alone
