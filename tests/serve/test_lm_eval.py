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
from folovllm.model_loader.model_files import resolve_model_path
from tests.serve.support import ENGINE, Running

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs pip install 'lm-eval[api]'")


def evaluate(
    model: str, arguments: dict[str, Any], task: str, folder: Path, *more: str, packages: Path | None = None
) -> list[dict[str, Any]]:
    """The samples that lm_eval writes down, in the order of the documents. It finds `packages` before others."""
    command = [sys.executable, "-m", "lm_eval", "--model", model]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", "tests/serve/lm_eval", "--tasks", task, "--log_samples", "--output_path", str(folder)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    paths = [str(path) for path in (packages, ROOT) if path is not None]
    env = {**os.environ, **offline, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, *more], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = folder.rglob(f"samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    return sorted(samples, key=lambda sample: sample["doc_id"])


# A package of vLLM's name: what lm_eval imports of it, beside the names that are ours.
NAMED_VLLM = {
    "vllm/__init__.py": "from folovllm import LLM, SamplingParams, TokensPrompt",
    "vllm/lora/__init__.py": "",
    "vllm/lora/request.py": "LoRARequest = None",
    "vllm/renderers/__init__.py": "",
    "vllm/renderers/hf.py": "def resolve_chat_template(tokenizer, chat_template, tools, model_config):\n"
    "    return tokenizer.get_chat_template(chat_template, tools)",
    "vllm/tokenizers.py": "def get_tokenizer(name, tokenizer_mode, **more):\n"
    "    from transformers import AutoTokenizer\n    return AutoTokenizer.from_pretrained(name, **more)",
    "vllm-0.11.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.0\n",
}


@pytest.fixture(scope="module")
def named_vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name, text in NAMED_VLLM.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def assert_scores_are_prompt_logprobs(samples: list[dict[str, Any]]) -> None:
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
def test_its_scores_are_the_prompt_logprobs(server: Running, tmp_path: Path) -> None:
    folder = resolve_model_path(EMBEDDED_MODEL)
    asked = {"base_url": f"{server.url}/v1/completions", "model": "embedded"}
    asked |= {"tokenizer": folder, "tokenizer_backend": "huggingface"}
    assert_scores_are_prompt_logprobs(evaluate("local-completions", asked, "folovllm_endings", tmp_path))


@pytest.mark.slow
def test_its_vllm_runs_this_engine_by_another_name(named_vllm: Path, tmp_path: Path) -> None:
    folder = resolve_model_path(EMBEDDED_MODEL)
    asked = {"pretrained": folder, "dtype": "float32", "max_model_len": 512, "gpu_memory_utilization": 0.5}
    samples = evaluate("vllm", asked, "folovllm_endings", tmp_path / "endings", packages=named_vllm)
    assert_scores_are_prompt_logprobs(samples)
    samples = evaluate("vllm", asked, "folovllm_questions", tmp_path / "questions", packages=named_vllm)
    assert_texts_are_greedy(samples, chat=False)


def assert_texts_are_greedy(samples: list[dict[str, Any]], *, chat: bool) -> None:
    llm, params = LLM(**ENGINE), SamplingParams(temperature=0, max_tokens=48, stop=["\n"])
    for sample in samples:
        question = sample["doc"]["question"]
        if chat:
            (output,) = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
        else:
            (output,) = llm.generate([question], params, use_tqdm=False)
        assert sample["resps"] == [[output.outputs[0].text]]
    assert len(samples) == 3


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_its_texts_are_greedy_ones(server: Running, tmp_path: Path, chat: bool) -> None:
    model, path = ("local-chat-completions", "chat/completions") if chat else ("local-completions", "completions")
    asked: dict[str, Any] = {"base_url": f"{server.url}/v1/{path}", "model": "embedded"}
    if not chat:
        asked |= {"tokenized_requests": False, "tokenizer_backend": "none"}
    more = ["--apply_chat_template"] if chat else []
    assert_texts_are_greedy(evaluate(model, asked, "folovllm_questions", tmp_path, *more), chat=chat)
