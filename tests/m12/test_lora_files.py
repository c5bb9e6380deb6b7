"""PEFT's folder: what is refused, by name; and an adapter whose files are written anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from folovllm import LLM, LoRARequest, SamplingParams
from folovllm.errors import ModelLoadError
from folovllm.lora.peft import read_adapter
from folovllm.models.lora import lora_modules
from folovllm.models.registry import decoder_spec
from tests.helpers import make_hf_model, tiny_hf_config
from tests.m12.adapters import SEVEN, VOICES, make_adapter
from tests.m12.conftest import Choir
from tests.m12.support import lora_engine, serve

MODULES = lora_modules(decoder_spec(tiny_hf_config("qwen3")))
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), make_hf_model("qwen3"), SEVEN)


def edited(folder: Path, target: Path, config: dict[str, Any], tensors: dict[str, Any]) -> LoRARequest:
    shutil.copytree(folder, target)
    path, weights = target / "adapter_config.json", load_file(folder / "adapter_model.safetensors")
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    weights = {name: value for name, value in (weights | tensors).items() if value is not None}
    save_file(weights, target / "adapter_model.safetensors")
    return LoRARequest("x", 1, target)


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ({"bias": "all"}, {}, "bias must be 'none', got 'all': it is not computed here"),
        ({"use_dora": True}, {}, "use_dora must be False, got True"),
        ({"modules_to_save": ["lm_head"]}, {}, r"modules_to_save must be \[\], got \['lm_head'\]"),
        ({"fan_in_fan_out": True}, {}, "fan_in_fan_out must be False, got True"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, {}, r"target_parameters must be \[\]"),
        ({"peft_type": "IA3"}, {}, "peft_type must be 'LORA', got 'IA3'"),
        ({"r": 32}, {}, r"down_proj must have A \(32, 96\) and B \(64, 32\), got \[\(4, 96\), \(64, 4\)\]"),
        ({"r": 0}, {}, "cannot be read: ZeroDivisionError|must have A"),
        ({"r": None}, {}, "must have A"),
        ({"alpha_pattern": {"(": 3}}, {}, "cannot be read"),
        ({}, {Q.format("A"): None}, r"q_proj must have A \(4, 64\) and B \(64, 4\), got \[None, \(64, 4\)\]"),
        ({}, {Q.format("B"): torch.ones(4, 64)}, r"got \[\(4, 64\), \(4, 64\)\]"),
        ({}, {Q.format("magnitude_vector"): torch.ones(3)}, "lora_magnitude_vector.weight must be a matrix lora_A or"),
        ({}, {"base_model.model.lm_head.weight": torch.ones(3)}, "lm_head.weight must be a matrix lora_A or lora_B"),
        (
            {},
            {"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)},
            "lm_head must be one of the model's layers",
        ),
        (
            {},
            {"base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight": torch.ones(4, 64)},
            "experts.0.up_proj must be one of the model's layers, .* of an MLP that is no expert",
        ),
        (
            {},
            {"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": torch.ones(4, 64)},
            "layers.7.mlp.up_proj must",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    folder: Path, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelLoadError, match=said):
        read_adapter(edited(folder, tmp_path / "x", config, tensors), MODULES, 16)


def test_a_rank_above_the_limit_says_what_to_raise(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="down_proj has rank 4, and max_lora_rank is 3: raise it"):
        read_adapter(LoRARequest("x", 1, folder), MODULES, 3)


@pytest.mark.parametrize("damage", ["none", "cut", "no json", "a list"])
def test_a_damaged_folder_is_one_line(folder: Path, tmp_path: Path, damage: str) -> None:
    request = edited(folder, tmp_path / "x", {}, {})
    weights, config = tmp_path / "x" / "adapter_model.safetensors", tmp_path / "x" / "adapter_config.json"
    if damage == "none":
        weights.rename(weights.with_suffix(".bin"))
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-9])
    else:
        config.write_text("{" if damage == "no json" else "[]")
    said = "must be a folder with adapter_config.json and adapter_model" if damage == "none" else "cannot be read"
    with pytest.raises(ModelLoadError, match=f"lora_path.*{said}"):
        read_adapter(request, MODULES, 16)


def test_an_adapter_of_another_model_is_refused_before_it_runs(choir: Choir, folder: Path, tmp_path: Path) -> None:
    other = make_adapter(tmp_path / "wide", make_hf_model("qwen3", hidden_size=32, num_hidden_layers=1), SEVEN)
    engine = lora_engine(choir.folder)
    with pytest.raises(ModelLoadError, match=r"down_proj must have A \(4, 96\)"):
        engine.add_request("r", [1, 2], lora_request=LoRARequest("x", 9, other))
    assert not engine.has_unfinished_requests()


def test_weights_that_were_written_anew_find_nothing_of_the_old_ones(choir: Choir, tmp_path: Path) -> None:
    """Under the same name, at the same place, by another number; and the first ones, brought back, find theirs."""
    prompt, place = list(range(20, 40)), tmp_path / "voice"
    engine = lora_engine(choir.folder, max_loras=1)
    for number, voice in enumerate(["all", "few", "all"], 1):
        shutil.copytree(choir.requests[voice].lora_path, place, dirs_exist_ok=True)  # type: ignore[union-attr]
        request = LoRARequest("voice", number, place)
        engine.add_request("r", prompt, SamplingParams(max_tokens=8, temperature=0.0), lora_request=request)
        outputs = [output for _ in range(12) for output in engine.step() if output.finished]
        assert list(outputs[0].outputs[0].token_ids) == choir.greedy(voice, prompt, 8)
        assert outputs[0].num_cached_tokens == (16 if number == 3 else 0)


def test_an_adapter_is_kept_while_someone_has_it_and_read_again_later(choir: Choir) -> None:
    engine = lora_engine(choir.folder, max_loras=1)
    loader = engine.input_processor.lora_loader
    few, every = choir.requests["few"], choir.requests["all"]
    assert few is not None
    assert every is not None
    serve(engine, [("few", [1, 2], 2)], choir.requests)
    assert loader.load(few) is loader.load(few)  # the slot has it
    serve(engine, [("all", [1, 2], 2)], choir.requests)
    assert list(loader._read) == [every]


def test_without_enable_lora_a_request_for_one_is_refused(choir: Choir) -> None:
    engine = lora_engine(choir.folder, enable_lora=False)
    with pytest.raises(ValueError, match="lora_request must be None in an engine without enable_lora=True, got .few."):
        engine.add_request("r", [1], lora_request=choir.requests["few"])
    with pytest.raises(ValueError, match="lora_request must be a LoRARequest or None, got 'few'"):
        engine.add_request("r", [1], lora_request="few")  # type: ignore[arg-type]


def test_an_llm_takes_one_adapter_for_all_prompts_or_one_for_each(choir: Choir) -> None:
    llm = LLM(str(choir.folder), skip_tokenizer_init=True, dtype="float32", enable_lora=True, max_loras=2)
    ids, greedy = [{"prompt_token_ids": [4, 5, 6]}] * 2, SamplingParams(max_tokens=6, temperature=0.0)

    def said(lora: Any) -> list[list[int]]:
        return [list(out.outputs[0].token_ids) for out in llm.generate(ids, greedy, lora_request=lora, use_tqdm=False)]

    of = {voice: choir.greedy(voice, [4, 5, 6], 6) for voice in (None, *VOICES)}
    assert said(choir.requests["few"]) == [of["few"]] * 2
    assert said([None, choir.requests["all"]]) == [of[None], of["all"]]
    with pytest.raises(ValueError, match="lora_request must be one or as many as the prompts, got 3 for 2"):
        said([None] * 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_impl": "transformers"}, "enable_lora=True needs our own layers"),
        ({"max_loras": 0}, "max_loras must be positive, got 0"),
    ],
)
def test_what_does_not_go_together(choir: Choir, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lora_engine(choir.folder, **options)
