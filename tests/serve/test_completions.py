"""Completions over HTTP, asked by the `openai` client, and the routes beside them."""

from __future__ import annotations

import re

import httpx
import openai
import pytest
from openai import OpenAI

from folovllm import LLM, SamplingParams
from folovllm.engine.input_processor import InputProcessor
from folovllm.serving.openai.middleware import ASSETS
from tests.serve.support import ENGINE, Running, wait_for

PROMPTS = ["Once upon a time", "从前", "One day"]


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM(**ENGINE)


def test_many_prompts_come_back_in_their_order(client: OpenAI, offline: LLM) -> None:
    answer = client.completions.create(model="embedded", prompt=PROMPTS, n=2, seed=3, max_tokens=12)
    outputs = offline.generate(PROMPTS, SamplingParams(n=2, seed=3, max_tokens=12), use_tqdm=False)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [c.text for output in outputs for c in output.outputs]


def test_so_they_do_as_streams(client: OpenAI) -> None:
    ask = {"model": "embedded", "prompt": PROMPTS, "temperature": 0, "max_tokens": 12}
    texts = [""] * 3
    for chunk in client.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in client.completions.create(**ask).choices]


def test_token_ids_are_a_prompt(client: OpenAI, offline: LLM) -> None:
    ids = offline.get_tokenizer()(PROMPTS[0])["input_ids"]
    by_ids = client.completions.create(model="embedded", prompt=ids, temperature=0)
    by_text = client.completions.create(model="embedded", prompt=PROMPTS[0], temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text


def test_a_prompt_is_checked_once(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[int]] = []
    real = InputProcessor._check_prompt

    def check(self: InputProcessor, token_ids: list[int]) -> None:
        checked.append(token_ids)
        real(self, token_ids)

    monkeypatch.setattr(InputProcessor, "_check_prompt", check)
    assert len(client.completions.create(model="embedded", prompt=[[5, 6], [7]], max_tokens=1).choices) == 2
    assert checked == [[5, 6], [7]]


def test_echo_scores_a_prompt_without_generating(client: OpenAI, offline: LLM) -> None:
    """What lm-evaluation-harness asks: the log-probabilities of a text's own tokens."""
    answer = client.completions.create(model="embedded", prompt=PROMPTS[0], echo=True, logprobs=1, max_tokens=0)
    (output,) = offline.generate(PROMPTS[0], SamplingParams(prompt_logprobs=1, max_tokens=1), use_tqdm=False)
    assert output.prompt_logprobs is not None
    rows = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    expected = [row[token_id].logprob for token_id, row in rows]
    scored = answer.choices[0].logprobs
    assert answer.choices[0].text == "".join(scored.tokens) == PROMPTS[0]
    assert scored.token_logprobs[0] is None
    assert scored.token_logprobs[1:] == pytest.approx(expected)
    assert scored.text_offset == [PROMPTS[0].index(token) for token in scored.tokens]
    assert answer.usage.completion_tokens == 0


def test_offsets_of_a_stream_count_from_its_beginning(client: OpenAI) -> None:
    ask = {"model": "embedded", "prompt": PROMPTS[0], "temperature": 0, "logprobs": 0, "max_tokens": 6}
    whole = client.completions.create(**ask).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**ask, stream=True)]
    assert [offset for chunk in chunks for offset in chunk.text_offset] == whole.text_offset
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens


def test_what_vllm_adds_to_an_answer(client: OpenAI, offline: LLM) -> None:
    more = {"prompt_logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}
    ask = {"model": "embedded", "prompt": PROMPTS[:2], "temperature": 0, "max_tokens": 5, "logprobs": 2}
    answer = client.completions.create(**ask, extra_body=more).model_dump()
    outputs = offline.generate(PROMPTS[:2], SamplingParams(temperature=0, max_tokens=5), use_tqdm=False)
    for choice, output in zip(answer["choices"], outputs, strict=True):
        assert choice["prompt_token_ids"] == output.prompt_token_ids
        assert choice["token_ids"] == output.outputs[0].token_ids
        assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
        for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
            assert token in top
        first, *rows = choice["prompt_logprobs"]
        assert first is None
        for token_id, row in zip(output.prompt_token_ids[1:], rows, strict=True):
            assert str(token_id) in row


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs must not be given with stream=true"),
        ({"prompt_logprobs": 3, "echo": True, "logprobs": 1}, "prompt_logprobs must agree with logprobs under echo"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids must not be given without logprobs"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens must be null: nothing else is supported here"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search must be False when streaming"),
        ({"length_penalty": 0.5}, "length_penalty must be 1.0 without use_beam_search=True"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(server: Running, more: dict, message: str) -> None:
    refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a", **more})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(message)


def test_best_of_is_chosen_and_not_streamed(client: OpenAI, offline: LLM) -> None:
    ask = {"model": "embedded", "prompt": PROMPTS[0], "seed": 2, "max_tokens": 10, "n": 1}
    answer = client.completions.create(**ask, best_of=4)
    params = SamplingParams(seed=2, max_tokens=10, best_of=4)
    assert answer.choices[0].text == offline.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].text
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(**ask, best_of=4, stream=True)


def test_a_bias_forces_a_token(client: OpenAI) -> None:
    answer = client.completions.create(
        model="embedded", prompt="a", logit_bias={"14": 100}, max_tokens=3, temperature=0, logprobs=0
    )
    assert answer.choices[0].logprobs.tokens == [","] * 3


def test_tokens_and_text_are_made_of_each_other(server: Running) -> None:
    text = "A cat 一只猫"
    made = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()
    assert made["count"] == len(made["tokens"])
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": text}
    refused = httpx.post(f"{server.url}/detokenize", json={"tokens": [99999]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens[0]")


def test_state_is_told(server: Running, client: OpenAI) -> None:
    client.completions.create(model="embedded", prompt="a", max_tokens=5, stop=None, temperature=0)
    wait_for(server.is_idle)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ping").status_code == 200
    assert httpx.get(f"{server.url}/load").json() == {"server_load": 0}
    assert set(httpx.get(f"{server.url}/version").json()) == {"version"}
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    label = '{engine="0",model_name="embedded"}'
    assert values[f"vllm:num_requests_running{label}"] == 0
    assert values[f"vllm:kv_cache_usage_perc{label}"] == 0
    assert values[f"vllm:generation_tokens_total{label}"] == server.llm.stats().output_tokens
    assert values[f"vllm:time_to_first_token_seconds_count{label}"] > 0


def test_the_page_asks_no_other_host(server: Running) -> None:
    page = httpx.get(server.url)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("", *(f"/assets/{name}" for name in ASSETS)):
        text = httpx.get(f"{server.url}{path}")
        assert text.status_code == 200
        assert "http://" not in text.text.replace("http://www.w3.org", "")
        assert "https://" not in text.text
    assert httpx.get(f"{server.url}/assets/app.py").status_code == 404


def test_the_page_of_the_routes_asks_this_server_alone(server: Running) -> None:
    for path in ("/docs", "/redoc"):
        page = httpx.get(server.url + path)
        assert page.status_code == 200
        asked = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert len(asked) >= 2
        for each in asked:
            assert each.startswith("/")
            assert httpx.get(server.url + each).status_code == 200
    assert httpx.get(f"{server.url}/openapi.json").json()["openapi"].startswith("3.1")


def test_a_route_that_there_is_not_is_told_of(server: Running) -> None:
    for path, hint in (("/chat/completions", "did you mean '/v1/chat/completions'?"), ("/v9", "GET /docs shows them")):
        answer = httpx.post(f"{server.url}{path}", json={})
        said = f"{path} must be a route of this server; {hint}"
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, said)
