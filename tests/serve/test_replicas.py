"""The server before several engines: the same contract, a router, and replicas that die. No cluster in here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from folovllm import LLM, SamplingParams
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.routing import PrefixAffinity, RoundRobin, Router
from tests.serve.fleet import LocalFleet, facts_of
from tests.serve.support import Running, first_tokens_only, running, wait_for

ENGINE: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 4}
LONG: dict[str, Any] = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
QUESTION = [{"role": "user", "content": "What is prefix caching?"}]


@contextmanager
def replicated(count: int = 2, router: Router | None = None, **options: Any) -> Iterator[tuple[Running, LocalFleet]]:
    fleet = LocalFleet(count, **ENGINE)
    llm = ReplicatedLLM(fleet, router or RoundRobin(), facts_of(fleet))
    with running(llm=llm, **options) as server:
        yield server, fleet


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Running, LocalFleet]]:
    with replicated() as made:
        yield made


def test_both_replicas_answer_with_one_engine_s_tokens(pair: tuple[Running, LocalFleet]) -> None:
    server, fleet = pair
    fleet.asked.clear()
    alone = LLM(**ENGINE).chat(QUESTION, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)[0].outputs[0]
    for _ in range(2):
        answer = server.client().chat.completions.create(
            model="embedded", messages=QUESTION, temperature=0, max_tokens=40, stream=False
        )
        assert answer.choices[0].message.content == alone.text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(alone.token_ids)
    assert sorted(fleet.asked) == ["replica-0", "replica-1"]


def test_what_is_wrong_is_refused_before_a_replica_hears_of_it(pair: tuple[Running, LocalFleet]) -> None:
    server, fleet = pair
    fleet.asked.clear()
    with pytest.raises(openai.BadRequestError, match="max_model_len"):
        server.client().completions.create(model="embedded", prompt=[5] * 5000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        server.client().completions.create(model="embedded", prompt="a", temperature=-1)
    assert fleet.asked == []


def test_who_leaves_frees_the_blocks_on_the_replica(pair: tuple[Running, LocalFleet]) -> None:
    server, fleet = pair
    before = sum(replica.engine.stats().output_tokens for replica in fleet.replicas.values())
    with first_tokens_only(*fleet.engines):
        stream = server.client().completions.create(model="embedded", prompt="a", stream=True, **LONG)
        next(iter(stream))
        assert not fleet.is_idle()
        stream.close()
        wait_for(fleet.is_idle)
        wait_for(lambda: server.llm.load().running == 0)
    assert sum(replica.engine.stats().output_tokens for replica in fleet.replicas.values()) == before + 1


def test_metrics_health_and_the_page_know_each_replica(pair: tuple[Running, LocalFleet]) -> None:
    server, _ = pair
    text = httpx.get(f"{server.url}/metrics").text
    for name in ("replica-0", "replica-1"):
        assert f'vllm:num_requests_running{{engine="{name}",model_name="embedded"}} 0.0' in text
    assert 'vllm:request_failure_total{engine="all",model_name="embedded"} 0.0' in text  # the server's own counts
    assert httpx.get(f"{server.url}/health").json() == {"replicas": {"replica-0": "up", "replica-1": "up"}}
    with httpx.stream("GET", f"{server.url}/live") as events:
        look = json.loads(next(events.iter_lines()).removeprefix("data: "))
    assert [(each["name"], each["state"]) for each in look["replicas"]] == [("replica-0", "up"), ("replica-1", "up")]
    assert look["kv_blocks_total"] == 2 * 256


def test_the_queue_counts_all_replicas_and_keys_are_asked_for() -> None:
    """Two rows on each of two replicas are four; one may wait; the sixth is told to go."""
    fleet = LocalFleet(2, **{**ENGINE, "max_num_seqs": 2})
    llm = ReplicatedLLM(fleet, RoundRobin(), facts_of(fleet))
    with running(llm=llm, max_queue=1, api_keys=["secret"]) as server:
        with pytest.raises(openai.AuthenticationError):
            server.client().models.list()
        client = server.client(api_key="secret")
        with first_tokens_only(*fleet.engines):
            streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(4)]
            for stream in streams:
                next(iter(stream))
            last = {"model": "embedded", "prompt": "b", "max_tokens": 2}
            waiting = threading.Thread(target=lambda: client.completions.create(**last))
            waiting.start()
            wait_for(lambda: llm.load().waiting == 1)
            with pytest.raises(openai.RateLimitError):
                client.completions.create(model="embedded", prompt="c", max_tokens=2)
            for stream in streams:
                stream.close()
        waiting.join()


def test_a_replica_that_dies_takes_its_own_requests_and_no_others() -> None:
    with replicated() as (server, fleet):
        client = server.client()
        with first_tokens_only(*fleet.engines):
            streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(2)]
            for stream in streams:
                next(iter(stream))
            fleet.dead.add("replica-0")
        with pytest.raises(openai.APIError, match="ReplicaDiedError"):
            list(streams[0])
        assert list(streams[1])[-1].choices[0].finish_reason == "length"
        assert httpx.get(f"{server.url}/health").json()["replicas"] == {"replica-0": "down", "replica-1": "up"}
        fleet.asked.clear()
        for _ in range(3):
            client.completions.create(model="embedded", prompt="a", max_tokens=2)
        assert fleet.asked == ["replica-1"] * 3
        fleet.dead.clear()
        wait_for(lambda: len(server.llm.router.replicas) == 2)


def test_without_a_replica_the_answer_is_503_at_once() -> None:
    with replicated(1) as (server, fleet):
        fleet.dead.add("replica-0")
        wait_for(lambda: httpx.get(f"{server.url}/health").json()["replicas"] == {"replica-0": "down"})
        with pytest.raises(openai.InternalServerError, match="no replica is up") as caught:
            server.client().completions.create(model="embedded", prompt="a")
        assert caught.value.status_code == 503
        stream = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "stream": True})
        assert (stream.status_code, stream.json()["error"]["code"]) == (503, "no_replica")


def test_a_prefix_is_computed_on_one_replica_and_found_there() -> None:
    """Four prefixes of 64 tokens, asked for three times each: 8 of 12 requests find theirs, wherever the router sends
    them in turn only some do."""
    prefixes = [[10 + number] * 64 for number in range(4)]
    with replicated(router=PrefixAffinity()) as (server, fleet):
        client = server.client()
        where: dict[int, set[str]] = {}
        for _ in range(3):
            for number, prefix in enumerate(prefixes):
                fleet.asked.clear()
                client.completions.create(model="embedded", prompt=[*prefix, 7], max_tokens=1)
                where.setdefault(number, set()).update(fleet.asked)
        assert all(len(names) == 1 for names in where.values())
        hits = sum(replica.engine.stats().prefix_cache_hits for replica in fleet.replicas.values())
        assert hits == 8 * 64


def test_all_replicas_forget_what_they_have_cached(pair: tuple[Running, LocalFleet]) -> None:
    server, fleet = pair
    told = []
    for name, replica in fleet.replicas.items():

        async def noting(name: str = name) -> None:
            told.append(name)

        replica.reset_prefix_cache = noting  # type: ignore[method-assign]
    try:
        assert httpx.post(f"{server.url}/reset_prefix_cache").status_code == 200
        assert sorted(told) == sorted(fleet.replicas)
    finally:
        for replica in fleet.replicas.values():
            del replica.reset_prefix_cache
