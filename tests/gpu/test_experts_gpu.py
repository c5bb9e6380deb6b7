"""Models with experts on a GPU: Hugging Face's tokens out of replayed steps, whatever the router chooses in them; and
the kernels at larger sizes, beside float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.layers import moe
from tests.gpu.places import Place, on_every_place
from tests.helpers import hf_greedy, make_hf_model
from tests.m10.support import KINDS, by_hand
from tests.m10.test_kernel import stacked

pytest.importorskip("triton")
PROMPTS = [[5, 9, 17, 200, 3], [7, 7, 1, 30, 2, 90, 41], [250]]


@on_every_place
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("invariant", [False, True])
def test_tokens_are_hugging_faces(kind: str, invariant: bool, place: Place, tmp_path: Path) -> None:
    model = make_hf_model(kind, num_attention_heads=2, num_key_value_heads=1)
    model.save_pretrained(tmp_path)
    llm = LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="float32", device=place.device, max_num_seqs=4, max_model_len=32,
        num_kv_blocks=20, block_size=16, batch_invariant=invariant,
    )  # fmt: skip
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [hf_greedy(model, prompt, 5) for prompt in PROMPTS]


@pytest.mark.parametrize("num_tokens", [1, 16, 700])
def test_kernels_choose_as_torch_does_and_multiply_as_float64_does(num_tokens: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU; tests/m10/test_kernel.py interprets small sizes")
    experts = stacked(32, hidden := 512, 192, torch.bfloat16)
    logits, x = torch.randn(num_tokens, 32), torch.randn(num_tokens, hidden).bfloat16()
    routing, chosen = moe.route(logits, 4, renormalize=True), experts.route(logits.cuda(), 4, renormalize=True)
    assert torch.equal(chosen.experts.cpu(), routing.experts)
    got = experts(x.cuda(), chosen).cpu().double()
    want = by_hand(experts.cpu(), x, routing)
    assert float((got - want).abs().max() / want.abs().max()) < 2**-6
