"""Experts in codes: what others' packages wrote is loaded, and our own quantiser says what rare experts saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from folovllm import LLM
from folovllm.layers.quantization.codes import Codes
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.models.registry import decoder_spec
from folovllm.quantize import layer as one_layer
from folovllm.quantize.calibration import read_texts
from folovllm.quantize.gptq import gptq
from folovllm.quantize.layerwise import EMBEDDED_TEXT, quantize
from folovllm.quantize.recipe import Recipe
from folovllm.quantize.rounding import Grid, output_error
from tests.helpers import add_byte_tokenizer, hf_greedy, make_hf_model, our_warnings, some, thinned, tiny_hf_config
from tests.m3.oracle import Oracle
from tests.m4.cpu_target import REASON
from tests.m7.support import PROMPTS, generate
from tests.m9.support import RankThread
from tests.m10.quantised import SETTINGS, meant, write
from tests.m10.support import KINDS

NEVER_CHOSEN = 5


@pytest.mark.parametrize(("kind", "method"), thinned({name: name for name in KINDS}, {name: name for name in SETTINGS}))
def test_tokens_are_hugging_faces_with_the_weights_that_are_meant(kind: str, method: str, tmp_path: Path) -> None:
    oracle = write(Oracle(tmp_path, kind).folder, tmp_path / "codes", method)
    llm = LLM(tmp_path / "codes", dtype="float32", device="cpu", skip_tokenizer_init=True)
    assert generate(llm) == [hf_greedy(oracle, ids, 16) for ids in PROMPTS]
    layer: Any = llm.engine.runner.model.model.layers[0].mlp
    assert layer.experts[3].down_proj.weight.dtype == (torch.uint8 if REASON is None else torch.float32)
    assert layer.gate.weight.dtype == torch.float32


@pytest.mark.parametrize(("kind", "method"), some([("mixtral", "gptq"), ("qwen3_moe", "awq")]))
def test_ranks_read_their_columns_of_each_experts_codes(
    kind: str, method: str, tmp_path: Path, rank_threads: list[RankThread]
) -> None:
    oracle = write(Oracle(tmp_path, kind).folder, tmp_path / "codes", method)
    llm = LLM(
        tmp_path / "codes", dtype="float32", device="cpu", skip_tokenizer_init=True, max_model_len=64,
        tensor_parallel_size=2,
    )  # fmt: skip
    assert generate(llm) == [hf_greedy(oracle, ids, 16) for ids in PROMPTS]
    assert len(rank_threads) == 1


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("\n".join(EMBEDDED_TEXT.read_text("utf-8").splitlines()[:40]), "utf-8")
    return path


def model(folder: Path, kind: str) -> Path:
    """The first number of a hidden state is positive in all layers, and it keeps the router from one expert."""
    hf: Any = make_hf_model(kind, vocab_size=260, dtype=torch.bfloat16, num_local_experts=8, num_experts_per_tok=3)
    with torch.no_grad():
        hf.model.embed_tokens.weight[:, 0] = 0.5
        for layer in hf.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.experts.down_proj[:, 0] = 0
            layer.mlp.gate.weight[NEVER_CHOSEN, 0] = -100
    hf.save_pretrained(folder)
    add_byte_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", some(["mixtral", "qwen3_moe"]))
def test_an_expert_that_the_text_never_reaches_is_rounded_to_the_nearest_and_that_is_said(
    kind: str, tmp_path: Path, text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = Recipe.from_options(method="gptq", group_size=8)
    report = quantize(str(model(tmp_path / "model", kind)), tmp_path / "out", recipe, text)
    rare = {each.name: each.tokens for each in report.errors if each.method == "rtn"}
    assert len(rare) == 2 * 3  # layers and products
    assert all(f".experts.{NEVER_CHOSEN}." in name for name in rare)
    assert set(rare.values()) == {0}
    total = report.calibration_tokens
    assert {each.tokens for each in report.errors if "self_attn" in each.name} == {total}
    seen = [
        each.tokens for each in report.errors if ".experts." in each.name and each.name.endswith(("w2", "down_proj"))
    ]
    assert sum(seen) == 2 * 3 * total  # each token goes to three
    (line,) = our_warnings(caplog)
    assert line.startswith(
        "6 of 48 weights of experts are rounded to the nearest code and not by gptq: they saw 0 to 0"
    )
    assert report.loss_before is not None
    assert report.loss_after is not None
    assert abs(report.loss_after - report.loss_before) < 0.5
    llm = LLM(tmp_path / "out", dtype="float32", device="cpu", skip_tokenizer_init=True)
    hf = meant(tmp_path / "out")
    assert generate(llm) == [hf_greedy(hf, ids, 16) for ids in PROMPTS]


def test_from_too_few_tokens_experts_are_rounded_as_without_a_text_and_the_rest_is_not(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(tmp_path / "model", "qwen3_moe")
    monkeypatch.setattr(one_layer, "FEWEST", 10**6)
    for method in ("gptq", "rtn"):
        quantize(str(source), tmp_path / method, Recipe.from_options(method=method, group_size=8), text)
    gptq, rtn = (load_file(tmp_path / method / "model.safetensors") for method in ("gptq", "rtn"))
    same = {name for name, tensor in gptq.items() if torch.equal(tensor, rtn[name])}
    packed = {name for name in gptq if name.endswith("weight_packed")}
    assert packed & same == {name for name in packed if ".experts." in name}


def test_from_one_token_for_each_input_gptq_errs_more_than_rounding_and_from_eight_less() -> None:
    """On other tokens than those that it has seen: what goes into an MLP of the embedded model."""
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    texts = [text for _, text in read_texts(EMBEDDED_TEXT)[:40]]
    inputs: list[torch.Tensor] = []
    product: Any = model.model.layers[1].mlp.gate_proj
    product.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
    with torch.no_grad():
        for text in texts:
            model(tokenizer.encode(text, return_tensors="pt"))
    rows = torch.cat(inputs)
    rows, weight = rows[torch.randperm(len(rows))], product.weight.detach()
    size, held_out = weight.shape[1], rows[-1500:].T @ rows[-1500:]
    grid = Grid.of(weight, QuantScheme("pack-quantized", 4, 32, False), torch.bfloat16)

    def error(codes: Codes) -> float:
        return output_error(codes.dequantize() - weight, held_out).sum().sqrt().item()

    ratios = {}
    for tokens in (1, 2, 8):
        seen = rows[: tokens * size]
        ratios[tokens] = error(gptq(weight, seen.T @ seen / len(seen), grid)) / error(grid.round(weight))
    print({tokens: f"{ratio:.2f}" for tokens, ratio in ratios.items()})
    assert ratios[1] > 1 > ratios[2] > ratios[8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "awq", "group_size": 8}, "^method must be rtn or gptq for a model with experts, got 'awq'; "),
        ({"w8a8": True, "smoothquant": 0.5}, "^smoothquant must be left out for a model with experts, got 0.5; "),
        ({"method": "rtn", "group_size": 16}, r"^group_size must divide .* \(24, 64\), got 16; 8 or -1 would do"),
    ],
)  # fmt: skip
def test_what_experts_cannot_have_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.from_options(**options).fitted(decoder_spec(tiny_hf_config("qwen3_moe")))
