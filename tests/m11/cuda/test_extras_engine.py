"""Models with windows, soft-caps and sinks on a GPU: our kernels compute them, in graphs where the layers are ours."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from folovllm import LLM, SamplingParams
from folovllm.attention.backend import NO_EXTRAS
from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.kernels import paged_decode
from folovllm.engine.builder import kernel_cases
from tests.fake_cuda import FakeCuda
from tests.helpers import hf_greedy, make_hf_folder, our_warnings
from tests.m11.models.tiny_types import make_model

pytestmark = pytest.mark.exhaustive  # interpreted: some seconds each
WINDOW, TOKENS = 8, 8
PROMPTS = [[3], [5, 9, 2, 40, 11] * 5, [7, 1, 2]]
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def run(folder: Path, device: str, fake_cuda: FakeCuda | None = None, **options: Any) -> tuple[LLM, list[list[int]]]:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 4, "num_kv_blocks": 120}
    limits: dict[str, Any] = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "skip_tokenizer_init": True}
    llm = LLM(str(folder), device=device, **{**settings, **limits, **options})
    if fake_cuda is not None:
        fake_cuda.reset_counts()
    return llm, [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("name", ["mistral", "qwen2"])
def test_layers_with_a_table_or_several_have_graphs(name: str, fake_cuda: FakeCuda, tmp_path: Path) -> None:
    """All of Mistral's layers have the window; of Qwen2's two, the second."""
    of_qwen = {"use_sliding_window": True, "max_window_layers": 1} if name == "qwen2" else {}
    folder = make_hf_folder(tmp_path, name, sliding_window=WINDOW, **of_qwen)
    llm, said = run(folder, "cuda", fake_cuda)
    assert said == run(folder, "cpu")[1]
    assert len(llm.engine.runner.kv_cache.groups.windows) == (1 if name == "mistral" else 2)
    assert fake_cuda.launches["graph"]
    assert llm.engine.runner.kv_cache.backend.name == "triton"
    assert not [name for name, _ in fake_cuda.compiled if name.startswith("_paged")]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_transformers_layers_give_generates_tokens(name: str, tmp_path: Path) -> None:
    """In the interpreter, by name. Gemma 2 has a soft-cap in all layers and a window of 16 in each second one, GPT-OSS
    such windows and a sink for each head. So there are two groups, and blocks that have left a window."""
    model = make_model(name)
    model.save_pretrained(tmp_path)
    llm, said = run(tmp_path, "cpu", attention_backend="triton", max_num_seqs=2)
    assert len(llm.engine.runner.kv_cache.groups.windows) == 2
    assert said == [hf_greedy(model, prompt, TOKENS) for prompt in PROMPTS]


def test_kernels_are_checked_with_what_layers_have(
    fake_cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When an engine starts on a GPU: here the kernels see past windows."""
    monkeypatch.setenv("FOLOVLLM_CHECK_KERNELS", "yes")
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)  # to caplog
    monkeypatch.setattr(paged_decode, "places_of", lambda device: 4)
    monkeypatch.setattr(kernel_cases, "MANY", 8)
    monkeypatch.setattr(TritonBackend, "extras", property(lambda self: NO_EXTRAS, lambda self, extras: None), False)
    llm, _ = run(make_hf_folder(tmp_path, "mistral", sliding_window=WINDOW), "cuda")
    assert llm.engine.runner.kv_cache.backend.name == "paged_torch"
    assert "the kernel 'prefill of 32 tokens' is off by" in our_warnings(caplog)[0]
