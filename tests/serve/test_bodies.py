"""Whatever a body holds, it is answered for what is wrong with it, and the server is as it was."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import httpx
import pytest
from pydantic import BaseModel, model_validator

from folovllm.serving.openai.bodies import Bodies
from tests.serve.bodies import BODIES, MOST, Body, Served, served
from tests.serve.support import Running, first_tokens_only, running, wait_for


@pytest.fixture(scope="module")
def process() -> Iterator[Served]:
    with served() as server:
        yield server


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_a_costly_body_is_refused_by_the_name_of_its_field(process: Served, body: Body) -> None:
    answer = process.send(body)
    assert answer.status_code == body.status, answer.text[:1000]
    if body.says is not None:
        error = answer.json()["error"]
        assert error["message"].startswith(body.says)
        assert error["param"] == body.param
        assert len(answer.content) < 2000
    assert httpx.get(f"{process.url}/health", timeout=600).status_code == 200


def test_memory_does_not_stay(process: Served) -> None:
    """Fifty times the largest body is far less than what a million objects leave behind."""
    process.another_client()
    before = process.megabytes()
    for body in BODIES:
        if body.says is not None:
            process.send(body)
    assert process.megabytes() < before + 50 * MOST.body / 1e6


def test_others_are_answered_while_costly_bodies_come(process: Served) -> None:
    """They come without a pause, until the other client has all of its answers."""
    done = threading.Event()
    costly = [body for body in BODIES if len(body.content) > MOST.body // 2]
    answered = 0

    def send() -> None:
        nonlocal answered
        while not done.is_set():
            for body in costly:
                if done.is_set():
                    return
                process.send(body)
                answered += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(3):
            process.another_client()
            assert httpx.get(f"{process.url}/health", timeout=600).status_code == 200
        wait_for(lambda: answered > 0)
    finally:
        done.set()
        sender.join()


def test_a_large_body_is_decoded_and_validated_beside_the_event_loop(server: Running) -> None:
    threads = []

    class Kind(BaseModel):
        prompt: str

        @model_validator(mode="after")
        def seen(self) -> Kind:
            threads.append(threading.get_ident())
            return self

    bodies = Bodies(2**20, server.app.state.serving.gate)
    made = asyncio.run(bodies.decode(b'{"prompt":"' + b"a" * 100_000 + b'"}', Kind))
    bodies.close()
    assert isinstance(made, Kind)
    assert len(made.prompt) == 100_000
    assert threads != [threading.get_ident()]
    assert len(threads) == 1


def test_the_queue_is_asked_before_a_body_is_decoded() -> None:
    """What is no JSON at all gets 429 while the queue is full, and 400 afterwards."""
    with running(max_queue=0, engine={"max_num_seqs": 1}) as server:
        ask = {"model": "embedded", "prompt": "a", "max_tokens": 900, "extra_body": {"ignore_eos": True}}

        def statuses() -> list[int]:
            paths = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
            with httpx.Client(headers={"Content-Type": "application/json"}, timeout=600) as client:
                return [client.post(server.url + path, content=b"{").status_code for path in paths]

        with first_tokens_only(server.llm.engine):
            first = server.client().completions.create(**ask, stream=True)
            next(first)
            assert statuses() == [429] * 4
            first.close()
            wait_for(server.is_idle)
            assert statuses() == [400] * 4


def test_prompts_that_the_queue_can_never_hold_are_not_told_to_try_again() -> None:
    with running(max_queue=1, engine={"max_num_seqs": 1}) as server:
        ask = {"prompt": ["a", "b", "c"], "max_tokens": 1}
        answer = httpx.post(f"{server.url}/v1/completions", json=ask, timeout=600)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("prompt must have at most 2 entries, got 3")
        answer = httpx.post(f"{server.url}/v1/completions", json={**ask, "prompt": ["a", "b"]}, timeout=600)
        assert len(answer.json()["choices"]) == 2


def test_no_prompt_is_tokenised_after_one_that_does_not_fit(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    serving, seen = server.app.state.serving, []
    tokens_of = serving.tokens_of
    monkeypatch.setattr(serving, "tokens_of", lambda text, *a, **k: seen.append(text) or tokens_of(text, *a, **k))
    too_long = "机" * server.llm.engine.max_model_len
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": ["a", too_long, "b", "c"]}, timeout=600)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("prompt has")
    assert seen == ["a", too_long]
