"""Fields of vLLM's requests and answers, fields that nobody knows, and what /docs says of those that there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from folovllm import LLM, SamplingParams
from folovllm.serving.openai.protocol import ChatRequest, CompletionRequest
from tests.serve.support import Running, running

ASK = {"messages": [{"role": "user", "content": "What is paging?"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def lenient() -> Iterator[Running]:
    with running(engine={"num_kv_blocks": 64}, unknown_fields="warn") as made:
        yield made


def test_a_field_that_nobody_knows_is_said_once_and_left_out(
    lenient: Running, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("folovllm").addHandler(caplog.handler)
    for _ in range(2):
        assert httpx.post(f"{lenient.url}/v1/chat/completions", json={**ASK, "of_another": 1}).status_code == 200
    logging.getLogger("folovllm").removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if "of_another" in record.getMessage()] == [
        "a request has the field 'of_another', which is not known here and left out"
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temprature": 0}, "temprature is not a field of this request; did you mean 'temperature'?"),
        ({"guided_json": {}}, "guided_json must be null: nothing else is supported here"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs must be {} or null: nothing else is supported here"),
        ({"temperature": "1"}, "temperature must be a number"),
    ],
)
def test_what_would_change_the_answer_is_still_refused(lenient: Running, fields: dict[str, Any], message: str) -> None:
    refused = httpx.post(f"{lenient.url}/v1/chat/completions", json={**ASK, **fields})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(message)


def test_beams_are_those_of_the_engine(client: OpenAI) -> None:
    beams = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5}
    ask: dict[str, Any] = {"prompt": "Once upon", "n": 2, "temperature": 0, "max_tokens": 8}
    answer = client.completions.create(model="embedded", **ask, extra_body=beams)
    params = SamplingParams(n=2, temperature=0, max_tokens=8, **beams)
    (output,) = LLM(dtype="float32").generate(ask["prompt"], params, use_tqdm=False)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in output.outputs]


def test_answers_have_the_keys_of_vllms(server: Running) -> None:
    chat = httpx.post(f"{server.url}/v1/chat/completions", json={**ASK, "request_id": "mine"}).json()
    assert chat["id"] == "chatcmpl-mine"
    nothing = {"service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"}
    assert {name for name in nothing if chat[name] is None} == nothing
    assert chat["choices"][0]["token_ids"] is chat["choices"][0]["message"]["annotations"] is None
    text = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}).json()
    assert text["system_fingerprint"] is text["choices"][0]["prompt_logprobs"] is None


def test_docs_say_what_each_field_is_and_have_examples_that_work(server: Running) -> None:
    spec = httpx.get(f"{server.url}/openapi.json").json()
    for kind in (ChatRequest, CompletionRequest):
        schema = spec["components"]["schemas"][kind.__name__]
        assert [name for name, field in schema["properties"].items() if "description" not in field] == []
    groups = {path: next(iter(each.values()))["tags"] for path, each in spec["paths"].items()}
    assert groups["/v1/chat/completions"] == ["answers"]
    assert groups["/tokenize"] == ["tokens"]
    assert groups["/v1/models"] == groups["/health"] == ["the server"]
    for path, name in (("/v1/chat/completions", "ChatRequest"), ("/v1/responses", "ResponsesRequest")):
        (example,) = spec["components"]["schemas"][name]["examples"]
        assert httpx.post(server.url + path, json=example).status_code == 200
