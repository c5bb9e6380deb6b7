"""Work beside the event loop: one request's does not hold up another's, and it ends when nobody waits for it."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from folovllm.serving.openai import formatting, serving_completion
from folovllm.serving.openai.background import NUM_THREADS, PREPARE_SECONDS
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.openai.serving_completion import SHORT
from folovllm.serving.openai.serving_engine import ServingEngine
from tests.serve.support import Running, running, wait_for


class Gated:
    """A tokenizer for which a text that says so takes as long as a test wants."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.calls = 0

    def __call__(self, text: str, **options: Any) -> Any:
        if "slow" in text:
            assert threading.current_thread().name.startswith("folovllm-background"), "it would hold up the event loop"
            self.calls += 1
            self.entered.release()
            assert self.go_on.acquire(timeout=600)
        return self.real(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def gated(server: Running, monkeypatch: pytest.MonkeyPatch) -> Gated:
    made = Gated(server.app.state.serving.tokenizer)
    monkeypatch.setattr(server.app.state.serving, "tokenizer", made)
    return made


def send(server: Running, body: dict[str, Any]) -> socket.socket:
    """The request, whose answer nobody reads."""
    data = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    made.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return made


def test_a_long_request_holds_up_no_short_one(server: Running, gated: Gated) -> None:
    with send(server, {"prompt": "slow" * SHORT, "max_tokens": 1}):
        assert gated.entered.acquire(timeout=600)
        assert server.client().completions.create(model="embedded", prompt="quick", max_tokens=1).choices
        gated.go_on.release()
    wait_for(server.is_idle)


def test_who_leaves_ends_what_is_prepared_for_it(server: Running, gated: Gated) -> None:
    """Bad words are tokenised one after the other: of a hundred, none after the client has gone."""
    body = {"prompt": "a", "bad_words": [f"slow{number}" for number in range(100)], "max_tokens": 1}
    with send(server, body):
        assert gated.entered.acquire(timeout=600)
    background = server.app.state.serving.background
    wait_for(lambda: not background.num_waited_for)
    gated.go_on.release(200)
    free = [threading.Event() for _ in range(NUM_THREADS)]  # that all threads come to this shows that none is held
    for event in free:
        background._threads.submit(event.set)
    assert all(event.wait(120) for event in free)
    assert gated.calls == 1


def test_a_request_that_is_long_to_prepare_is_refused(server: Running, gated: Gated) -> None:
    times = iter(range(0, 10_000, 10))
    real, server.app.state.serving.clock = server.app.state.serving.clock, lambda: float(next(times))
    gated.go_on.release(100)
    try:
        body = {"prompt": "a", "bad_words": [f"slow{number}" for number in range(100)]}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)
    finally:
        server.app.state.serving.clock = real
    assert answer.status_code == 400
    assert f"within {PREPARE_SECONDS:g} s" in answer.json()["error"]["message"]
    assert gated.calls < 10


def test_a_server_that_ends_prepares_nothing_more() -> None:
    with running() as server:
        gated = Gated(server.app.state.serving.tokenizer)
        server.app.state.serving.tokenizer = gated
        body = {"prompt": "a", "bad_words": [f"slow{number}" for number in range(100)]}
        found: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: found.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=600))
        )
        thread.start()
        assert gated.entered.acquire(timeout=600)
        server.server.handle_exit(15, None)
        gated.go_on.release(2000)
        thread.join()
    assert found[0].status_code == 503
    assert gated.calls == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_heavy_answer_is_made_beside_the_event_loop_and_in_pieces(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A stream's single tokens are written at once; the log-probabilities of all prompts are not."""
    beside: Counter[bool] = Counter()  # values by whether they were made beside the event loop
    real_encode, real_finite, longest = formatting._encode, serving_completion.finite, 0

    def encode(value: Any) -> str:
        nonlocal longest
        text = real_encode(value)
        longest = max(longest, len(text))
        return text

    def finite(value: float) -> float:
        beside[threading.current_thread().name.startswith("folovllm-background")] += 1
        return real_finite(value)

    monkeypatch.setattr(formatting, "_encode", encode)
    monkeypatch.setattr(serving_completion, "finite", finite)
    body = {"prompt": [7] * 300, "n": 8, "max_tokens": 4, "echo": True, "logprobs": 20, "stream": stream}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)
    assert answer.status_code == 200
    assert beside[True] > 8 * 299 * 21
    assert beside[False] <= 8 * 4 * 22
    assert longest < 10_000 < len(answer.content) / 100


def test_threads_may_share_a_tokenizer_that_asks_for_padding_and_truncation(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first call takes them away, which would fail beside another thread's. It is made before there are any."""
    inner = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.enable_truncation(3)
    inner.enable_padding(length=5, pad_id=1)
    shared = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    monkeypatch.setattr(server.llm.engine, "tokenizer", shared)
    tokenizer = ServingEngine(server.llm, ServerOptions()).tokenizer
    assert tokenizer.backend_tokenizer.truncation is tokenizer.backend_tokenizer.padding is None
    start, errors = threading.Barrier(4), []

    def work() -> None:
        start.wait()
        try:
            for _ in range(50):
                assert len(tokenizer("a " * 1000)["input_ids"]) == 1000
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
