"""The engine runs in the compiled CPU kernels where it can, and says the same without them."""

from __future__ import annotations

import pytest

from folovllm import LLM, SamplingParams
from folovllm.utils import cpu_kernels

REASON = cpu_kernels.unavailable_reason()


@pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
def test_the_engine_takes_them_up_and_does_without_when_told(monkeypatch):
    params = SamplingParams(max_tokens=12, temperature=0)
    prompts = ["Once upon a time", "The block table", "A"]
    texts = {}
    for wanted in ("yes", "no"):
        monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", wanted)
        llm = LLM(dtype="float32")
        layer = llm.engine.runner.model.model.layers[0]
        assert type(layer.mlp).__name__ == ("CompiledMLP" if wanted == "yes" else "LeanMLP")
        assert layer.self_attn.attn.backend.name == ("cpu" if wanted == "yes" else "paged_torch")
        texts[wanted] = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
    assert texts["yes"] == texts["no"]
