"""What those who run a server ask of it, and what a dashboard for vLLM reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from folovllm.entrypoints.cli.main import main
from tests.serve.support import Running, running

# What vLLM's own Grafana dashboard asks for (examples/online_serving/prometheus_grafana/grafana.json).
DASHBOARD = """e2e_request_latency_seconds_bucket prompt_tokens_total generation_tokens_total num_requests_running
num_requests_waiting num_requests_swapped inter_token_latency_seconds_bucket time_to_first_token_seconds_bucket
kv_cache_usage_perc request_prompt_tokens_bucket request_generation_tokens_bucket request_success_total
request_queue_time_seconds_sum request_prefill_time_seconds_sum request_decode_time_seconds_sum
request_max_num_generation_tokens_bucket request_inference_time_seconds_count
request_time_per_output_token_seconds_count iteration_tokens_total_bucket request_params_n_bucket
request_params_max_tokens_bucket request_prefill_kv_computed_tokens_bucket"""


@pytest.fixture(scope="module")
def vllms() -> Iterator[Running]:
    with running() as made:
        yield made


def sample(text: str, name: str, labels: str = r"[^}]*") -> float:
    (value,) = re.findall(rf"^{re.escape(name)}{{{labels}}} (\S+)$", text, re.MULTILINE)
    return float(value)


def test_guesses_are_counted_under_vllms_names(vllms: Running) -> None:
    assert "spec_decode" not in httpx.get(f"{vllms.url}/metrics").text
    guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    with running(engine={"speculative_config": guesses}) as made:
        made.llm.engine.scheduler.drafts.length.costs = None  # as many as there is room for
        ask = {"prompt": "a cat and a cat and a cat", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        assert httpx.post(f"{made.url}/v1/completions", json=ask, timeout=600).status_code == 200
        text = httpx.get(f"{made.url}/metrics").text
        counted = made.llm.engine.stats().spec_decode
    assert sample(text, "vllm:spec_decode_num_drafts_total") == counted.num_drafts > 0
    assert sample(text, "vllm:spec_decode_num_draft_tokens_total") == counted.num_draft_tokens
    assert sample(text, "vllm:spec_decode_num_accepted_tokens_total") == counted.num_accepted_tokens
    for place, count in enumerate(counted.num_accepted_tokens_per_pos):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert sample(text, name, rf'[^}}]*position="{place}"[^}}]*') == count


def test_a_dashboard_for_vllm_fills(vllms: Running) -> None:
    ask = {"prompt": ["Once upon", "A"], "n": 2, "max_tokens": 5, "ignore_eos": True}
    assert httpx.post(f"{vllms.url}/v1/completions", json=ask, timeout=600).status_code == 200
    text = httpx.get(f"{vllms.url}/metrics").text
    assert {name for name in DASHBOARD.split() if f"\nvllm:{name}{{" not in text} == set()
    tokens = [len(vllms.llm.engine.tokenizer(prompt)["input_ids"]) for prompt in ask["prompt"]]
    assert sample(text, "vllm:request_prompt_tokens_sum") == sum(tokens)
    assert sample(text, "vllm:request_prompt_tokens_count") == 2
    assert sample(text, "vllm:request_generation_tokens_sum") == 20
    assert sample(text, "vllm:request_generation_tokens_count") == 4
    assert sample(text, "vllm:request_max_num_generation_tokens_sum") == 10
    assert sample(text, "vllm:request_params_n_sum") == 4
    assert sample(text, "vllm:request_params_max_tokens_sum") == 10
    assert sample(text, "vllm:request_prefill_kv_computed_tokens_sum") == sum(tokens)
    assert sample(text, "vllm:request_generation_tokens_bucket", '[^}]*le="2.0"[^}]*') == 0
    assert sample(text, "vllm:request_generation_tokens_bucket", '[^}]*le="5.0"[^}]*') == 4
    parts = [sample(text, f"vllm:request_{part}_time_seconds_sum") for part in ("prefill", "decode", "inference")]
    assert parts[0] + parts[1] == pytest.approx(parts[2])
    assert min(parts) > 0
    assert sample(text, "vllm:request_queue_time_seconds_sum") >= 0
    assert sample(text, "vllm:request_queue_time_seconds_count") == 2
    facts = re.search(r"^vllm:cache_config_info{(.*)} 1.0$", text, re.MULTILINE)
    assert facts is not None
    assert 'block_size="16"' in facts.group(1)
    assert 'num_gpu_blocks="4096"' in facts.group(1)


def test_a_route_says_how_it_is_asked(server: Running) -> None:
    answer = httpx.get(f"{server.url}/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"] == "/v1/completions must be asked by POST, got GET"


def test_the_server_tells_how_it_is_set_up(server: Running) -> None:
    told = httpx.get(f"{server.url}/server_info").json()
    assert (told["model"], told["cache_config"]["num_kv_blocks"]) == ("embedded", 4096)
    tokenizer = httpx.get(f"{server.url}/tokenizer_info").json()
    assert tokenizer["vocab_size"] == len(server.llm.engine.tokenizer)
    assert tokenizer["chat_template"] == server.llm.engine.tokenizer.chat_template
    assert tokenizer["tool_call_parser"] is None


@pytest.mark.parametrize("value", ["http://a.example", "[1]", "{}"])
def test_origins_are_a_list_as_vllm_has_it(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--allowed-origins", value])
    assert "--allowed-origins: must be a list of texts in JSON, such as '[\"*\"]', got" in capsys.readouterr().err
