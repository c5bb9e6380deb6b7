"""The engine runs in the compiled CPU kernels where it can, and says the same without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm import LLM, SamplingParams
from folovllm.layers.compiled_ops import CompiledLinear, CompiledOps
from folovllm.layers.linear import Linear, LinearMethod
from folovllm.layers.ops import LayerOps
from folovllm.models.one_call import OneCallOps
from folovllm.utils import cpu_kernels
from tests.helpers import make_hf_folder
from tests.m4.test_cpu_decode import prompts_of

REASON = cpu_kernels.unavailable_reason()


@pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
def test_the_engine_takes_them_up_and_does_without_when_told(monkeypatch):
    params = SamplingParams(max_tokens=12, temperature=0)
    prompts = ["Once upon a time", "The block table", "A"]
    texts = {}
    for wanted in ("yes", "no"):
        monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", wanted)
        llm = LLM(dtype="float32")
        decoder = llm.engine.runner.model.model
        assert type(decoder.ops) is (OneCallOps if wanted == "yes" else LayerOps)
        assert decoder.layers[0].self_attn.attn.backend.name == ("cpu" if wanted == "yes" else "paged_torch")
        texts[wanted] = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
    assert texts["yes"] == texts["no"]


@pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
def test_all_layers_are_one_call_and_enforce_eager_leaves_that_out(tmp_path):
    """Greedy, seeded, with log-probabilities of the prompt, for which every row is read; and beside it one without."""
    folder = make_hf_folder(tmp_path)
    params = [
        SamplingParams(max_tokens=6, temperature=0, logprobs=3, detokenize=False),
        SamplingParams(max_tokens=6, seed=1, n=2, prompt_logprobs=2, logprobs=0, detokenize=False),
        SamplingParams(max_tokens=6, temperature=0, detokenize=False),
    ]
    prompts = [{"prompt_token_ids": ids} for ids in prompts_of((33, 20, 1))]
    told = []
    for eager in (False, True):
        llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=eager)
        assert type(llm.engine.runner.model.model.ops) is (CompiledOps if eager else OneCallOps)
        outputs = [llm.generate([prompt], one, use_tqdm=False)[0] for prompt, one in zip(prompts, params, strict=True)]
        outputs += llm.generate(prompts, params, use_tqdm=False)
        told.append([
            (output.prompt_logprobs, [(one.token_ids, one.logprobs) for one in output.outputs]) for output in outputs
        ])  # fmt: skip
    assert told[0] == told[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_engine_runs_all_of_a_model_in_one_way(dtype: str, tmp_path: Path) -> None:
    """In float16, which the kernels do not take, in plain torch."""
    llm = LLM(str(make_hf_folder(tmp_path)), skip_tokenizer_init=True, dtype=dtype, device="cpu")
    model = llm.engine.runner.model
    compiled = REASON is None and dtype != "float16"
    kinds = {type(module.method) for module in model.modules() if isinstance(module, Linear)}
    assert kinds == {CompiledLinear if compiled else LinearMethod}
    assert type(model.model.ops) is (OneCallOps if compiled else LayerOps)
    (output,) = llm.generate([[3, 1, 4, 1, 5]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4
