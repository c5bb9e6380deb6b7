"""Keys, sizes and queues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.serve.support import first_tokens_only, running, wait_for


@pytest.fixture(scope="module")
def guarded():
    with running(
        api_keys=["first", "second"],
        max_queue=1,
        max_body_bytes=2000,
        salt_by_key=True,
        engine={"max_num_seqs": 1, "block_size": 4},
    ) as server:
        yield server


def test_a_key_is_asked_for(guarded) -> None:
    for key in ("first", "second"):
        assert guarded.client(api_key=key).models.list().data
    for key in ("third", "firs", "first "):
        headers = {"Authorization": f"Bearer {key}x"}
        assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 401
    for path in ("/v1/models", "/metrics", "/docs", "/live", "/version"):
        answer = httpx.get(f"{guarded.url}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{guarded.url}/health").status_code == 200


def test_a_body_that_is_too_large_is_refused(guarded) -> None:
    client = guarded.client(api_key="first")
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="embedded", prompt="x" * 3000)
    assert caught.value.status_code == 413

    def without_a_length():
        yield b'{"prompt": "'
        for _ in range(10):
            yield b"x" * 300

    answer = httpx.post(
        f"{guarded.url}/v1/completions", content=without_a_length(), headers={"Authorization": "Bearer first"}
    )
    assert answer.status_code == 413
    assert "2000" in answer.json()["error"]["message"]


def test_beyond_the_queue_it_says_when_to_come_back(guarded) -> None:
    """One runs, one waits, and the third is told. When the first goes away, the second is served."""
    client = guarded.client(api_key="first")
    ask = {"model": "embedded", "prompt": "a", "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    with ThreadPoolExecutor() as threads:
        with first_tokens_only(guarded.llm.engine):
            first = client.completions.create(**ask, stream=True)
            next(iter(first))
            second = threads.submit(client.completions.create, model="embedded", prompt="b", max_tokens=3)
            wait_for(lambda: guarded.llm.stats().waiting == 1)
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**ask)
            assert int(caught.value.response.headers["retry-after"]) >= 1
            first.close()
        assert second.result().choices
    wait_for(guarded.is_idle)


def test_each_key_finds_its_own_prompts(guarded) -> None:
    def cached(key: str, salt: str | None = None) -> int:
        answer = guarded.client(api_key=key).completions.create(
            model="embedded", prompt=[7] * 33, max_tokens=1, extra_body={"cache_salt": salt}
        )
        wait_for(guarded.is_idle)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached("first"), cached("first"), cached("second"), cached("second")] == [0, 32, 0, 32]
    assert [cached("first", "mine"), cached("first", "mine"), cached("second", "mine")] == [0, 32, 0]
