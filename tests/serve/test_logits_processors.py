"""A user's logits processors in a server: the classes are named when it starts, a request asks by vllm_xargs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from tests.serve.support import ENGINE, running

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_engine_in_a_process_of_its_own_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    named = ["m11_logits_processor:NeverTwice", "m11_logits_processor:Favour"]
    ask: dict[str, Any] = {"model": "embedded", "prompt": "a", "max_tokens": 3, "temperature": 0}
    with (
        closing(EngineProcess("embedded", **ENGINE, logits_processors=named)) as process,
        running(llm=MPClient(process)) as server,
        server.client() as client,
    ):

        def tokens(**more: Any) -> list[int]:
            body = {"ignore_eos": True, "return_token_ids": True, **more}
            return client.completions.create(**ask, extra_body=body).choices[0].token_ids  # type: ignore[attr-defined, no-any-return]

        first, second, third = tokens(vllm_xargs={"favour": 9})
        assert (first, second == 9, third) == (9, False, 9)
        for given, said in (
            ({"favor": 9}, "vllm_xargs key 'favor' must name a registered logits processor; did you mean 'favour'"),
            ({"favour": "a"}, "favour must be an integer, got 'a'"),
            ({"structured_outputs": "a"}, r"vllm_xargs\['structured_outputs'\] must be a compiled form"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                tokens(vllm_xargs=given)
