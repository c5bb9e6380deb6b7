"""lm-evaluation-harness as a client: its scores of texts are the engine's own log-probabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.config import EMBEDDED_MODEL
from folovllm.model_files import resolve_model_path
from tests.serve.support import ENGINE, Running

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs pip install 'lm-eval[api]'")


def evaluate(model: str, arguments: dict[str, Any], task: str, folder: Path, *more: str) -> list[dict[str, Any]]:
    """The samples that lm_eval writes down, in the order of the documents."""
    command = [sys.executable, "-m", "lm_eval", "--model", model]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", "tests/serve/lm_eval", "--tasks", task, "--log_samples", "--output_path", str(folder)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run([*command, *more], cwd=ROOT, env={**os.environ, **offline}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = folder.rglob(f"samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    return sorted(samples, key=lambda sample: sample["doc_id"])


@pytest.mark.slow
def test_its_scores_are_the_prompt_logprobs(server: Running, tmp_path: Path) -> None:
    folder = resolve_model_path(EMBEDDED_MODEL)
    asked = {"base_url": f"{server.url}/v1/completions", "model": "embedded"}
    asked |= {"tokenizer": folder, "tokenizer_backend": "huggingface"}
    samples = evaluate("local-completions", asked, "folovllm_endings", tmp_path)
    llm = LLM(**ENGINE)
    tokenizer = llm.get_tokenizer()
    count = 0
    for sample in samples:
        for asked_for, (answer,) in zip(sample["arguments"].values(), sample["resps"], strict=True):
            beginning, ending = asked_for["arg_0"], asked_for["arg_1"]
            ids = tokenizer(beginning + ending)["input_ids"]
            (output,) = llm.generate([ids], SamplingParams(prompt_logprobs=0, max_tokens=1), use_tqdm=False)
            assert output.prompt_logprobs is not None
            rows = list(zip(ids, output.prompt_logprobs, strict=True))[len(tokenizer(beginning)["input_ids"]) :]
            assert rows
            expected = sum(row[token_id].logprob for token_id, row in rows if row is not None)
            assert float(answer[0]) == pytest.approx(expected, abs=1e-4)
            assert (answer[1] == "True") == all(row[token_id].rank == 1 for token_id, row in rows if row is not None)
            count += 1
    assert count == 10


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_its_texts_are_greedy_ones(server: Running, tmp_path: Path, chat: bool) -> None:
    model, path = ("local-chat-completions", "chat/completions") if chat else ("local-completions", "completions")
    asked: dict[str, Any] = {"base_url": f"{server.url}/v1/{path}", "model": "embedded"}
    if not chat:
        asked |= {"tokenized_requests": False, "tokenizer_backend": "none"}
    more = ["--apply_chat_template"] if chat else []
    samples = evaluate(model, asked, "folovllm_questions", tmp_path, *more)
    llm, params = LLM(**ENGINE), SamplingParams(temperature=0, max_tokens=48, stop=["\n"])
    for sample in samples:
        question = sample["doc"]["question"]
        if chat:
            (output,) = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
        else:
            (output,) = llm.generate([question], params, use_tqdm=False)
        assert sample["resps"] == [[output.outputs[0].text]]
    assert len(samples) == 3
