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

MODULE = """
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor

class Always(LogitsProcessor):
    def apply(self, logits):
        logits[:, 7] = 1e9
        return logits

@register_logits_processor("tests.served")
class Served(LogitsProcessor):
    @classmethod
    def validate(cls, params):
        if not isinstance(params.extra_args["tests.served"], int):
            raise ValueError("extra_args['tests.served'] must be a token's id")

    def apply(self, logits):
        for logit, row in zip(logits, self.rows):
            logit[row.params.extra_args["tests.served"]] = 1e10
        return logits
"""


def test_an_engine_in_a_process_of_its_own_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served_processors.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    named = ["served_processors:Always", "served_processors:Served"]
    ask: dict[str, Any] = {"model": "embedded", "prompt": "a", "max_tokens": 3, "temperature": 0}
    with (
        closing(EngineProcess("embedded", **ENGINE, logits_processors=named)) as process,
        running(llm=MPClient(process)) as server,
        server.client() as client,
    ):

        def tokens(**more: Any) -> list[int]:
            body = {"ignore_eos": True, "return_token_ids": True, **more}
            return client.completions.create(**ask, extra_body=body).choices[0].token_ids  # type: ignore[attr-defined, no-any-return]

        assert tokens() == [7] * 3
        assert tokens(vllm_xargs={"tests.served": 9}) == [9] * 3
        for given, said in (
            ({"tests.serve": 9}, r"vllm_xargs key 'tests.serve' must name a registered logits processor; did you mean"),
            ({"tests.served": "a"}, r"vllm_xargs\['tests.served'\] must be a token's id"),
            ({"structured_outputs": "a"}, r"vllm_xargs\['structured_outputs'\] must be a compiled form"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                tokens(vllm_xargs=given)
