"""What only real processes can show: answers that come over Ray, aborts that reach a replica, and SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from folovllm import LLM, SamplingParams

LONG: dict[str, Any] = {"max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}
QUESTION: Any = [{"role": "user", "content": "What is prefix caching?"}]
NAMES = ("replica-0", "replica-1")


def client_of(server: Any) -> Any:
    return server.client(api_key="secret")


def used_blocks(server: Any) -> list[int]:
    from tests.ray.support import snapshots

    return [each.stats.kv_blocks_used for each in snapshots(server)]


def begun(client: Any, count: int) -> list[Any]:
    """So many streams, each of which has brought a piece of its answer."""
    streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(count)]
    for stream in streams:
        next(stream)
    return streams


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
    from tests.ray.support import snapshots

    assert all(each.stats.output_tokens > 0 for each in snapshots(server))


def test_who_leaves_frees_the_blocks_on_the_replica(server: Any, first_tokens_only: Any) -> None:
    from tests.serve.support import wait_for

    with first_tokens_only():
        (stream,) = begun(client_of(server), 1)
        assert sum(used_blocks(server)) > 0
        stream.close()
        wait_for(lambda: used_blocks(server) == [0, 0])


def test_a_killed_replica_loses_its_own_requests_and_comes_back(server: Any, first_tokens_only: Any) -> None:
    import httpx
    import openai

    from tests.serve.support import wait_for

    def states() -> dict[str, str]:
        found: dict[str, str] = httpx.get(f"{server.url}/health", timeout=600).json()["replicas"]
        return found

    def end(stream: Any) -> str:
        try:
            return str([chunk.choices[0].finish_reason for chunk in stream][-1])
        except openai.APIError as error:
            return str(error)

    client = client_of(server)
    victim = NAMES[0]
    with first_tokens_only():
        streams = begun(client, 2)  # round robin: one each
        before = {name: asyncio.run(server.llm.fleet.call(name, "facts")).pid for name in NAMES}
        os.kill(before[victim], signal.SIGKILL)
    ends = [end(stream) for stream in streams]
    assert sorted("ReplicaDiedError" in end for end in ends) == [False, True]
    assert "length" in ends
    for _ in range(4):
        assert client.completions.create(model="embedded", prompt="a", max_tokens=2).choices
    wait_for(lambda: states() == dict.fromkeys(NAMES, "up"))
    after = {name: asyncio.run(server.llm.fleet.call(name, "facts")).pid for name in NAMES}
    assert [name for name in NAMES if before[name] != after[name]] == [victim]
    for _ in range(2):
        assert client.completions.create(model="embedded", prompt="a", max_tokens=2).choices


def test_a_cluster_that_is_not_there_is_named() -> None:
    from folovllm.serving.replicas.cluster import RayFleet
    from folovllm.serving.replicas.options import ReplicaOptions

    with pytest.raises(ValueError, match=r"ray_address must be a Ray cluster's that can be reached, got '127.0.0.1:1'"):
        RayFleet("embedded", {}, ReplicaOptions(ray_address="127.0.0.1:1"))
