"""What is wrong with a folder that pools, or with what is asked of it: one line, which names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from folovllm import LLM, PoolingParams, SamplingParams
from folovllm.errors import ModelLoadError
from tests.helpers import edit_config, edit_tensors
from tests.m11.pooling_support import add_modules, make_folder

LAST = {"pooling_mode": "lasttoken"}
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 64}


def _no_score(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["score.weight"]


TWO = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
OTHER_MODE = "pooling_mode of 1_Pooling must be lasttoken or mean, got "
FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cls": (lambda folder: add_modules(folder, {"pooling_mode": "cls"}), f"{OTHER_MODE}'cls'"),
    "two modes": (lambda folder: add_modules(folder, TWO), rf"{OTHER_MODE}\['cls', 'mean'\]"),
    "without prompts": (
        lambda folder: add_modules(folder, {**LAST, "include_prompt": False}),
        "include_prompt of 1_Pooling must be true, got False",
    ),
    "dense": (
        lambda folder: add_modules(folder, LAST, "Dense"),
        "modules.json must name Transformer, Pooling, .* got Dense",
    ),
    "elsewhere": (
        lambda folder: add_modules(folder, LAST, first="0_Transformer"),
        "modules.json must have the Transformer in its own folder, got 0_Transformer",
    ),
    "no list": (
        lambda folder: (folder / "modules.json").write_text("{}"),
        "modules.json must hold a JSON list, got {}",
    ),
    "no modules": (
        lambda folder: (folder / "modules.json").write_text("[1]"),
        r"modules.json must list modules by type and path, got \[1\]",
    ),
    "both ways": (
        lambda folder: edit_config(folder, is_causal=False),
        "is_causal of model_type 'qwen3' must be True to pool, got False: its tokens look both ways",
    ),
    "both ways, too": (
        lambda folder: edit_config(folder, use_bidirectional_attention=True),
        "use_bidirectional_attention of model_type 'qwen3' must be False to pool, got True",
    ),
    "a reward model": (
        lambda folder: add_modules(edit_config(folder, architectures=["Qwen3ForRewardModel"]), LAST),
        r"architectures \['Qwen3ForReward.*'\] .* not supported",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_pools_in_another_way_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path)
    change, text = FOLDERS[name]
    change(tmp_path)
    with pytest.raises(ModelLoadError, match=text):
        LLM(str(tmp_path), **PLAIN)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "modernbert"])
def test_encoders_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    AutoModel.from_config(AutoConfig.for_model(kind, pad_token_id=0, **fields)).save_pretrained(tmp_path)
    add_modules(tmp_path, {"pooling_mode": "mean"}, "Normalize")
    with pytest.raises(ModelLoadError, match=f"model_type '{kind}'"):
        LLM(str(tmp_path), skip_tokenizer_init=True, max_model_len=64)


@pytest.mark.parametrize(
    ("fields", "edit", "text"),
    [
        ({}, _no_score, "the checkpoint lacks score.weight"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}}, None, "activation_fn must be Identity"),
        ({"classifier_from_token": ["no", "y"]}, None, "classifier_from_token must be two tokens of the vocabulary"),
    ],
)  # fmt: skip
def test_a_classifier_that_lacks_its_head_is_refused(
    tmp_path: Path, fields: dict[str, Any], edit: Any, text: str
) -> None:
    make_folder(tmp_path, "ForSequenceClassification", num_labels=2)
    edit_config(tmp_path, **fields)
    if edit is not None:
        edit_tensors(tmp_path, edit)
    with pytest.raises(ModelLoadError, match=text):
        LLM(str(tmp_path), **PLAIN)


@pytest.fixture(scope="module")
def embeds(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("embeds")
    make_folder(folder, matryoshka_dimensions=[16, 32])
    return LLM(str(folder), **PLAIN)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda llm: llm.generate([1]), r"runner must be 'generate' to draw tokens, .* \(task 'embed'\)"),
        (lambda llm: llm.generate([1], SamplingParams()), "runner must be 'generate' to draw tokens"),
        (lambda llm: llm.classify([1]), "task must be one of 'embed', got 'classify'"),
        (lambda llm: llm.encode([1], PoolingParams(task="classify")), "task must be one of 'embed', got 'classify'"),
        (lambda llm: llm.embed([1], pooling_params=PoolingParams(task="classify")), "task must be one of 'embed', got"),
        (lambda llm: llm.embed([1], pooling_params=PoolingParams(65)), r"dimensions must be one of \(16, 32\), got 65"),
        (lambda llm: llm.embed([1], pooling_params=PoolingParams(8)), r"dimensions must be one of \(16, 32\), got 8"),
        (lambda llm: llm.embed([1], pooling_params=[PoolingParams()] * 2), "sampling_params must be one or as many"),
        (lambda llm: llm.embed([[]]), "prompt must have at least one token"),
        (lambda llm: llm.embed([260]), r"prompt_token_ids must be in \[0, 260\), got 260"),
        (lambda llm: llm.score("a", []), "data_1 must be one text, or as many as data_2 has, got 1 for 0"),
        (lambda llm: llm.score(["a", "b"], ["a"] * 3), "data_1 must be one text, .* got 2 for 3"),
        (lambda llm: llm.embed([1], pooling_params=PoolingParams(0)), "dimensions must be positive, got 0"),
        (lambda llm: llm.embed([1], pooling_params=PoolingParams(use_activation=1)), "use_activation must be"),
        (lambda llm: llm.encode([1], PoolingParams(task="rank")), "task must be"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_said_in_one_line(embeds: LLM, ask: Callable[[Any], object], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        ask(embeds)
    assert not embeds.engine.core.requests


def test_a_model_that_draws_tokens_pools_nothing() -> None:
    llm = LLM(max_model_len=32, num_kv_blocks=8)
    for ask in (lambda: llm.embed("a"), lambda: llm.encode([1], PoolingParams())):
        with pytest.raises(ValueError, match=r"^runner must be 'pooling' for embeddings, labels and scores"):
            ask()
    with pytest.raises(ValueError, match=r"^score needs a model that embeds, .*: this one draws tokens"):
        llm.score("a", "b")


def test_a_pair_needs_one_label(tmp_path: Path) -> None:
    make_folder(tmp_path, "ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match="^score needs a model that embeds, .*: this one has 3 labels"):
        LLM(str(tmp_path), **PLAIN).score("a", "b")
    with pytest.raises(ValueError, match="dimensions must be None for a classifier, got 2"):
        LLM(str(tmp_path), **PLAIN).classify("a", pooling_params=PoolingParams(2))


def test_guesses_are_for_tokens(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(ValueError, match="speculative_config must be None for a model that pools"):
        LLM(str(tmp_path), speculative_config={"method": "ngram", "num_speculative_tokens": 2}, **PLAIN)


def test_runner_decides_where_the_folder_could_be_either(tmp_path: Path) -> None:
    make_folder(tmp_path, "ForCausalLM")
    add_modules(tmp_path, LAST, "Normalize")
    assert LLM(str(tmp_path), **PLAIN).engine.config.pooler_config is not None
    llm = LLM(str(tmp_path), runner="generate", **PLAIN)
    assert len(llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3
    (tmp_path / "modules.json").unlink()
    assert LLM(str(tmp_path), **PLAIN).engine.config.pooler_config is None
    with pytest.raises(ValueError, match="runner must be"):
        LLM(str(tmp_path), runner="embed")


def test_dummy_weights_pool_as_the_files_say(tmp_path: Path) -> None:
    make_folder(tmp_path, "ForSequenceClassification", num_labels=3)
    (tmp_path / "model.safetensors").unlink()
    (probs,) = (output.outputs.probs for output in LLM(str(tmp_path), load_format="dummy", **PLAIN).classify([1, 2]))
    assert probs == pytest.approx([1 / 3] * 3)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3ForSequenceClassification"]
