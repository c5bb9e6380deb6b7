"""The command line on a model that overflows."""

from __future__ import annotations

import json

import pytest

from folovllm.entrypoints.cli.generate import as_json
from folovllm.entrypoints.cli.main import main
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from tests.m1.overflow import make_overflow_model


@pytest.mark.parametrize("logprobs", [[], ["--logprobs", "2"]])
def test_the_command_line_says_so_in_one_line_and_prints_no_nan(tmp_path, capsys, logprobs):
    folder = make_overflow_model(tmp_path, max_position_embeddings=64)
    options = [
        *f"--model {folder} --dtype float16 --json --max-tokens 3 --temperature 0".split(),
        "--device",
        "cpu",
        *logprobs,
    ]
    assert main(["generate", "go!o", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    loading, error = err.splitlines()
    assert loading == f"loading {folder} …"
    assert error.startswith("error: request '")
    assert "not finite" in error
    assert main(["generate", "good", *options]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_what_cannot_be_drawn_has_a_finite_number_in_json():
    entry = {1: Logprob(-0.5, rank=1), 2: Logprob(float("-inf"), rank=2)}
    completion = CompletionOutput(index=0, text="", token_ids=[1], cumulative_logprob=-0.5, logprobs=[entry])
    output = RequestOutput("r", prompt=None, prompt_token_ids=[3], outputs=[completion], finished=True)
    shown = json.loads(as_json(output), parse_constant=pytest.fail)
    assert [entry["logprob"] for entry in shown["outputs"][0]["logprobs"][0].values()] == [-0.5, -9999.0]
