"""The command line on a model that overflows."""

from __future__ import annotations

import json

import pytest

from folovllm.entrypoints.cli.generate import as_json
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput


def test_what_cannot_be_drawn_has_a_finite_number_in_json():
    entry = {1: Logprob(-0.5, rank=1), 2: Logprob(float("-inf"), rank=2)}
    completion = CompletionOutput(index=0, text="", token_ids=[1], cumulative_logprob=-0.5, logprobs=[entry])
    output = RequestOutput("r", prompt=None, prompt_token_ids=[3], outputs=[completion], finished=True)
    shown = json.loads(as_json(output), parse_constant=pytest.fail)
    assert [entry["logprob"] for entry in shown["outputs"][0]["logprobs"][0].values()] == [-0.5, -9999.0]
