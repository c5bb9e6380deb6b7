"""What the command has at the root alone: `generate --json --stream --logprobs`."""

from __future__ import annotations

import json

import pytest

from tests.m1.test_commands import GREEDY, greedy, run


def test_generate_json_is_one_object_for_each_prompt(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["generate", "hello", "汉字", "--model", model, "--json", *GREEDY], capsys)
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert first["outputs"][0]["token_ids"] == greedy(model, "hello")
    assert (second["prompt"], second["finished"]) == ("汉字", True)
    assert second["metrics"]["ttft"] > 0


def test_generate_json_stream_gives_deltas(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["generate", "hello", "--model", model, "--json", "--stream", *GREEDY], capsys)
    deltas = [json.loads(line)["outputs"][0]["token_ids"] for line in out.splitlines()]
    assert deltas == [[token_id] for token_id in greedy(model, "hello")]


def test_generate_logprobs_has_the_likeliest(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["generate", "x", "--model", model, "--json", "--logprobs", "2", *GREEDY], capsys)
    rows = json.loads(out)["outputs"][0]["logprobs"]
    assert (code, len(rows), {len(row) for row in rows}) == (0, 8, {2})


@pytest.mark.parametrize("extra", [["--no-stream"], ["--stream"]])
def test_streamed_or_not_the_text_alone_is_on_stdout(
    model: str, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, expected, _ = run(["generate", "hello", "--model", model, *GREEDY], capsys)
    code, out, err = run(["generate", "hello", "--model", model, *GREEDY, *extra], capsys)
    assert (code, out) == (0, expected)
    assert "8 tokens: the first after" in err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["generate", "x", "--temprature", "0"], "did you mean '--temperature'?"),
        (["generate", "x", "--max-token", "3"], "did you mean '--max-tokens'?"),  # no abbreviations
        (["generate", "x", "--n", "2", "--stream"], "--stream prints one text"),
        (["generate", "x", "--logprobs", "2"], "--logprobs must be given with --json, got 2 without it"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert text in err
