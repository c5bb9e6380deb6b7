"""Bodies that nobody would write, made from the OpenAPI description: each is answered, and none by a failure."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.serve.support import Running, wait_for

ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"]
ANSWERS = {200, 400, 404, 413}


@pytest.fixture(scope="module")
def described(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def reachable(body: Any, plain: bool) -> Any:
    """The same body with the name of the model that is there, and few sequences: most of it would end at these.
    plain: without what a body may leave out, of which a single field can be refused."""
    if isinstance(body, dict):
        body = {**body, "model": "embedded"}
        if plain:
            body = {name: value for name, value in body.items() if name in ("model", "messages", "prompt")}
        for name in ("n", "best_of"):
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 4)
        for name in ("max_tokens", "max_completion_tokens"):
            if name in body or name == "max_tokens":
                body[name] = 3 if not isinstance(body.get(name), int) else min(body[name], 5)
    return body


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "otherwise"])
@pytest.mark.parametrize("route", ROUTES)
def test_any_body_is_answered(described: Any, server: Running, route: str, mode: GenerationMode) -> None:
    strategy = described[route]["POST"].as_strategy(generation_mode=mode)
    seen: dict[int, int] = {}

    @given(case=strategy)
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def answered(case: Any) -> None:
        if "completions" in route and mode is GenerationMode.POSITIVE:
            case.body = reachable(case.body, plain=sum(seen.values()) % 4 == 0)
        response = case.call()
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
        assert response.status_code in ANSWERS, response.text
        if response.status_code != 200:
            keys = {"message", "type"} | (set() if route == "/v1/messages" else {"param", "code"})
            assert set(response.json()["error"]) == keys

    answered()
    assert sum(seen.values()) >= 20
    if mode is GenerationMode.POSITIVE:
        assert seen.get(200, 0) > 0
    wait_for(server.is_idle)
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 50_000, b'{"prompt": NaN}', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
     b'{"\\ud800": 1, "prompt": "a"}', b'{"prompt": [1e400]}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
     b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": [[]]}', b'{"prompt": [[0], []]}',
     b'{"prompt": "a", "logit_bias": {"1": NaN}}', b'{"prompt": "a", "stop": [""]}',
     b'{"prompt": "a", "logprobs": -5}', b'{"prompt": "a", "priority": 99999999999999999999}'],
)  # fmt: skip
def test_a_body_that_is_odd_is_refused(server: Running, body: bytes) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
