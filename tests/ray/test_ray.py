"""What only real processes can show: answers that come over Ray, aborts that reach a replica, and SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

from folovllm import LLM, SamplingParams

LONG: dict[str, Any] = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
QUESTION: Any = [{"role": "user", "content": "What is prefix caching?"}]
NAMES = ("replica-0", "replica-1")


def client_of(server: Any) -> Any:
    return server.client(api_key="secret")


def used_blocks(server: Any) -> list[int]:
    from tests.ray.support import looks

    return [look.stats.kv_blocks_used for look in looks(server)]


def test_each_replica_answers_with_one_engine_s_tokens(server: Any) -> None:
    alone = LLM(dtype="float32", num_kv_blocks=256).chat(
        QUESTION, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False
    )
    for stream in (False, True, False, True):
        answer = client_of(server).chat.completions.create(
            model="embedded", messages=QUESTION, temperature=0, max_tokens=40, stream=stream
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content for chunk in answer)
        else:
            text = answer.choices[0].message.content
        assert text == alone[0].outputs[0].text
    from tests.ray.support import looks

    assert all(look.stats.output_tokens > 0 for look in looks(server))


def test_who_leaves_frees_the_blocks_on_the_replica(server: Any) -> None:
    from tests.serve.support import wait_for

    stream = client_of(server).completions.create(model="embedded", prompt="a", stream=True, **LONG)
    next(iter(stream))
    assert sum(used_blocks(server)) > 0
    stream.close()
    wait_for(lambda: used_blocks(server) == [0, 0])


def test_keys_a_full_queue_and_metrics_are_the_front_s(server: Any) -> None:
    import httpx
    import openai

    with pytest.raises(openai.AuthenticationError):
        server.client().models.list()
    client = client_of(server)
    streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(4)]
    for stream in streams:
        next(iter(stream))
    waiting = threading.Thread(target=lambda: client.completions.create(model="embedded", prompt="b", max_tokens=2))
    waiting.start()
    from tests.serve.support import wait_for

    wait_for(lambda: server.llm.load().waiting == 1)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="embedded", prompt="c", max_tokens=2)
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer secret"}).text
    for name in NAMES:
        assert f'folovllm:num_requests_running{{model_name="embedded",replica="{name}"}} 2.0' in text
    for stream in streams:
        stream.close()
    waiting.join()
    wait_for(lambda: used_blocks(server) == [0, 0])


def test_a_killed_replica_loses_its_own_requests_and_comes_back(server: Any) -> None:
    import httpx
    import openai

    from tests.serve.support import wait_for

    def states() -> dict[str, str]:
        found: dict[str, str] = httpx.get(f"{server.url}/health").json()["replicas"]
        return found

    client = client_of(server)
    streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(2)]
    chunks = [iter(stream) for stream in streams]
    for each in chunks:
        next(each)
    before = {name: asyncio.run(server.llm.fleet.facts(name)).pid for name in NAMES}
    victim = next(name for name, count in server.llm._requests.items() if count)  # round robin: one each
    os.kill(before[victim], signal.SIGKILL)
    ends: list[str] = []
    for each in chunks:
        try:
            ends.append([chunk.choices[0].finish_reason for chunk in each][-1])
        except openai.APIError as error:
            ends.append(str(error))
    assert sorted("ReplicaDiedError" in end for end in ends) == [False, True]
    assert "length" in ends
    for _ in range(4):
        assert client.completions.create(model="embedded", prompt="a", max_tokens=2).choices
    wait_for(lambda: states() == dict.fromkeys(NAMES, "up"))
    after = {name: asyncio.run(server.llm.fleet.facts(name)).pid for name in NAMES}
    assert [name for name in NAMES if before[name] != after[name]] == [victim]
    for _ in range(2):
        assert client.completions.create(model="embedded", prompt="a", max_tokens=2).choices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, r"min_replicas must be at most max_replicas \(2\), got 3"),
        ({"min_replicas": 2}, "max_replicas must be given where the other bound is"),
        ({"replicas": 5, "min_replicas": 1, "max_replicas": 3}, r"replicas must be in \[1, 3\]"),
        ({"router": "nearest"}, "router must be one of round-robin, least-loaded, prefix-affinity, got 'nearest'"),
        ({"router": "round-robin", "margin": 3.0}, "router_margin must be given with --router prefix-affinity alone"),
        ({"margin": -1.0}, "margin must be non-negative, got -1"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    from folovllm.entrypoints.replicas.launch import ReplicaOptions

    with pytest.raises(ValueError, match=message):
        ReplicaOptions(**options)


def test_a_cluster_that_is_not_there_is_named() -> None:
    from folovllm.entrypoints.replicas.cluster import ClusterOptions, RayFleet

    with pytest.raises(ValueError, match=r"ray_address must be a Ray cluster's that can be reached, got '127.0.0.1:1'"):
        RayFleet("embedded", {}, 1, 1, ClusterOptions(address="127.0.0.1:1"))
