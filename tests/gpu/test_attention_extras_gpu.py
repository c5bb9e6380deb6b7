"""Windows, soft-caps and sinks in the Triton kernels on a GPU: at the sizes of models that have them, and in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from folovllm.attention.backend import AttentionExtras
from folovllm.attention.backends.invariant import TritonInvariantBackend
from folovllm.attention.backends.triton import TritonBackend
from tests.helpers import make_hf_folder
from tests.m4.attention_reference import Shape, Spans
from tests.m11.cuda.test_attention_extras import backend_of, case_with, check
from tests.m11.cuda.test_extras_engine import WINDOW, run

pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device

MODELS = {
    "Gemma 2 9B": (Shape(16, 8, 256, 16, torch.bfloat16), AttentionExtras(4096, 50.0)),
    "its full layers": (Shape(16, 8, 256, 16, torch.bfloat16), AttentionExtras(None, 50.0)),
    "GPT-OSS": (Shape(64, 8, 64, 16, torch.bfloat16), AttentionExtras(128, None, torch.linspace(-3, 3, 64))),
    "Mistral 7B": (Shape(32, 8, 128, 16, torch.float16), AttentionExtras(4096)),
    "small": (Shape(4, 2, 64, 16, torch.float32), AttentionExtras(33, 2.0, torch.linspace(-3, 3, 4))),
}
BATCHES: dict[str, Spans] = {
    "decodes": [(1, 331 * i % 9000) for i in range(40)],
    "one decode": [(1, 9000)],
    "drafts": [(2, 5000), (1, 40), (2, 127)],
    "chunks": [(1, 4500), (1, 30), (600, 4400), (200, 0), (40, 100)],
}


@pytest.mark.parametrize("kind", [TritonBackend, TritonInvariantBackend])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", MODELS)
def test_models_sizes(model: str, batch: str, kind: type[TritonBackend]) -> None:
    shape, extras = MODELS[model]
    if extras.sinks is not None:
        extras = AttentionExtras(extras.sliding_window, extras.logits_soft_cap, extras.sinks.cuda())
    case = case_with(extras, BATCHES[batch], shape)
    check(backend_of(kind, case, extras).forward(case.q, case.layer.kv_cache, case.metadata), case)


@pytest.mark.parametrize("name", ["mistral", "qwen2"])
def test_an_engine_says_what_it_says_on_a_cpu(name: str, tmp_path: Path) -> None:
    """In graphs: one table serves all of Mistral's layers, and each of Qwen2's two has one."""
    of_qwen = {"use_sliding_window": True, "max_window_layers": 1} if name == "qwen2" else {}
    folder = make_hf_folder(tmp_path, name, sliding_window=WINDOW, **of_qwen)
    llm, said = run(folder, "cuda")
    assert said == run(folder, "cpu")[1]
    assert llm.engine.runner.graphs is not None
    assert llm.engine.runner.graphs.prompts.shapes
