"""Prompts computed on one replica and tokens on another, with a folder between them. No cluster in here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from folovllm import LLM, SamplingParams
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.serving.routing import LeastLoaded
from tests.serve.fleet import LocalFleet, facts_of
from tests.serve.support import Running, running, wait_for

ENGINE: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 4}
PROMPTS = [[(7 * place + number) % 900 + 10 for place in range(150 + 37 * number)] for number in range(3)]
SHORT = list(range(10, 73))


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Running, LocalFleet]]:
    tier = {"kv_offloading_size": 0.01, "kv_offloading_path": str(tmp_path / "tier")}
    fleet = LocalFleet(2, prefill=1, **ENGINE, **tier)
    options = ReplicaOptions(replicas=2, prefill_replicas=1)
    llm = ReplicatedLLM(fleet, LeastLoaded(), facts_of(fleet), options.make_prefill_router())
    with running(llm=llm) as server:
        yield server, fleet


@pytest.fixture(scope="module")
def alone() -> LLM:
    return LLM(**ENGINE)


def complete(server: Running, prompt: list[int], **more: Any) -> Any:
    return server.client().completions.create(
        model="embedded",
        prompt=prompt,
        max_tokens=12,
        temperature=0,
        logprobs=1,
        extra_body={"ignore_eos": True, **more},
    )


def test_a_long_prompt_is_found_where_its_tokens_are_generated(apart: tuple[Running, LocalFleet], alone: LLM) -> None:
    server, fleet = apart
    engine = fleet.replicas["replica-0"].engine
    for prompt in PROMPTS:
        fleet.asked.clear()
        hits = engine.stats().prefix_cache_hits
        answer = complete(server, prompt).choices[0]
        assert fleet.asked == ["prefill-0", "replica-0"]
        assert engine.stats().prefix_cache_hits - hits == (len(prompt) - 1) // 16 * 16
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
        (want,) = alone.generate(prompt, params, use_tqdm=False)
        assert answer.text == want.outputs[0].text
        assert want.outputs[0].logprobs is not None
        found = [
            row[token].logprob for row, token in zip(want.outputs[0].logprobs, want.outputs[0].token_ids, strict=True)
        ]
        assert answer.logprobs.token_logprobs == pytest.approx(found, abs=1e-4)
    assert fleet.is_idle()


def test_what_the_tier_cannot_help_goes_straight_to_the_tokens(apart: tuple[Running, LocalFleet]) -> None:
    server, fleet = apart
    complete(server, SHORT)
    complete(server, PROMPTS[0], prompt_logprobs=1)
    assert fleet.asked == ["replica-0"] * 2


def test_a_prompt_outlives_the_replica_that_computes_it(apart: tuple[Running, LocalFleet], alone: LLM) -> None:
    server, fleet = apart
    fleet.dead.add("prefill-0")
    answer = complete(server, PROMPTS[1])
    assert fleet.asked[-1] == "replica-0"
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert answer.choices[0].text == alone.generate(PROMPTS[1], params, use_tqdm=False)[0].outputs[0].text
    wait_for(lambda: httpx.get(f"{server.url}/health").json()["replicas"]["prefill-0"] == "down")
    fleet.asked.clear()
    complete(server, PROMPTS[2])
    assert fleet.asked == ["replica-0"]
    fleet.dead.clear()
    wait_for(lambda: httpx.get(f"{server.url}/health").json()["replicas"]["prefill-0"] == "up")
    complete(server, PROMPTS[2][:-20])
    assert "prefill-0" in fleet.asked


def test_an_error_of_the_first_costs_time_alone(
    apart: tuple[Running, LocalFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, fleet = apart

    async def fails() -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(fleet.replicas["prefill-0"], "flush_kv_offload", fails)
    assert complete(server, PROMPTS[0]).choices[0].finish_reason == "length"
    assert fleet.asked == ["prefill-0", "replica-0"]
    assert set(server.llm._requests.values()) == {0}


def test_names_say_what_a_replica_is_for() -> None:
    assert ReplicaOptions(replicas=3, prefill_replicas=1).names == ["prefill-0", "replica-0", "replica-1"]
    with pytest.raises(ValueError, match="prefill_replicas must be less than the 2 replicas, got 2"):
        ReplicaOptions(replicas=2, prefill_replicas=2)


def test_all_forget_with_the_tier(apart: tuple[Running, LocalFleet]) -> None:
    server, fleet = apart
    complete(server, PROMPTS[0])
    assert httpx.post(f"{server.url}/reset_prefix_cache").status_code == 200
    hits = [engine.stats().prefix_cache_hits for engine in fleet.engines]
    complete(server, PROMPTS[0])
    assert fleet.engines[0].stats().prefix_cache_hits == hits[0]
