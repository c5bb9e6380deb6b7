"""Adapters on a GPU: the merged models' tokens out of replayed steps of several voices; and the kernels at larger
sizes, beside float64, and a row's bits in any company."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import LLM
from tests.gpu.places import Place, on_every_place
from tests.helpers import make_hf_model
from tests.m12.conftest import make_choir
from tests.m12.support import asked_of_all, serve

pytest.importorskip("triton")


@on_every_place
@pytest.mark.parametrize("invariant", [False, True])
def test_voices_are_the_merged_models(invariant: bool, place: Place, tmp_path: Path) -> None:
    hf = make_hf_model("qwen3", num_hidden_layers=1)
    hf.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    choir = make_choir(tmp_path, hf)
    engine = LLM(
        str(choir.folder), skip_tokenizer_init=True, dtype="float32", device=place.device, enable_lora=True,
        max_loras=4, max_num_seqs=4, max_model_len=64, num_kv_blocks=64, block_size=16, batch_invariant=invariant,
    ).engine  # fmt: skip
    asked = asked_of_all(list(choir.requests))
    assert serve(engine, asked, choir.requests) == [choir.greedy(*each) for each in asked]


@pytest.mark.parametrize("num_rows", [1, 16, 700])
def test_kernels_add_as_float64_does_and_a_rows_bits_are_its_own(num_rows: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU; tests/m12/test_lora_kernel.py interprets small sizes")
    from folovllm.layers.triton_ops import TritonLoRAWeights
    from folovllm.lora.mapping import LoRAMapping

    size, outs, rank, cuda = 4096, 1536, 48, torch.device("cuda")
    weights = TritonLoRAWeights(8, rank, size, outs, torch.bfloat16, cuda)
    weights.a.normal_(std=size**-0.5)
    weights.b.normal_(std=rank**-0.5)
    x, base = (torch.randn(num_rows, width, device=cuda).bfloat16() for width in (size, outs))
    slots = torch.randint(-1, 8, (num_rows,), device=cuda)
    out, a, b = base.clone(), weights.a.double(), weights.b.double()
    weights.add(x, LoRAMapping(slots), out)
    for row, slot in enumerate(slots.tolist()):
        want = base[row].double() + (b[slot] @ (a[slot] @ x[row].double()) if slot >= 0 else 0)
        assert float((out[row].double() - want).abs().max() / want.abs().max()) < 2**-6
    for row in {0, num_rows - 1}:
        alone = base[row, None].clone()
        weights.add(x[row, None], LoRAMapping(slots[row, None]), alone)
        assert torch.equal(alone[0], out[row])
