"""Loading Hugging Face's model: whole, sharded and dummy weights, and what a broken folder is told."""

from __future__ import annotations

import logging
from pathlib import Path

import accelerate
import pytest
import torch

from folovllm import ModelConfig, ModelLoader, ModelLoadError, get_model_and_tokenizer
from folovllm.model_loader import load_tokenizer
from folovllm.utils.logging import init_logger
from tests.helpers import add_byte_tokenizer, edit_tensors, hf_greedy, make_hf_folder, make_hf_model

PROMPT = [5, 99, 17, 3]


# --- loading


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("sharded", [False, True])
def test_loaded_weights_generate_what_the_saved_ones_did(kind: str, sharded: bool, tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, kind, sharded=sharded)
    assert len(list(made.glob("*.safetensors"))) > 1 or not sharded
    loaded = ModelLoader(ModelConfig(str(made), dtype="float32")).load("cpu")
    assert not loaded.training
    assert hf_greedy(loaded, PROMPT, 16) == hf_greedy(make_hf_model(kind), PROMPT, 16)


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3", tie_word_embeddings=True)
    loaded = ModelLoader(ModelConfig(str(made))).load("cpu")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()


def test_model_and_tokenizer_come_together(folder: Path) -> None:
    model, tokenizer = get_model_and_tokenizer(ModelConfig(str(folder)), "cpu")
    assert model.device.type == "cpu"
    assert tokenizer is not None
    assert tokenizer("Hi")["input_ids"] == [ord("H"), ord("i")]


def test_without_a_tokenizer_the_folder_needs_none(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    model, tokenizer = get_model_and_tokenizer(ModelConfig(str(made), skip_tokenizer_init=True), "cpu")
    assert tokenizer is None
    assert len(hf_greedy(model, PROMPT, 4)) == 4


def test_loading_builds_no_weights_before_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The low-memory path: parameters are on the meta device when the model is built."""
    from transformers import Qwen3ForCausalLM

    seen = set()
    original = Qwen3ForCausalLM.__init__

    def spy(self: Qwen3ForCausalLM, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        seen.update(p.device.type for p in self.parameters())

    monkeypatch.setattr(Qwen3ForCausalLM, "__init__", spy)
    model = ModelLoader(ModelConfig(str(folder))).load("cpu")
    assert seen == {"meta"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert accelerate.utils.find_device(model.state_dict()) == torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_arrive_in_the_dtype_that_was_asked_for(folder: Path, dtype: str) -> None:
    model = ModelLoader(ModelConfig(str(folder), dtype=dtype)).load("cpu")
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}


def test_dummy_weights_need_only_the_configuration(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    (made / "model.safetensors").unlink()
    config = ModelConfig(str(made), load_format="dummy", seed=1)
    a, b = ModelLoader(config).load("cpu"), ModelLoader(config).load("cpu")
    other = ModelLoader(ModelConfig(str(made), load_format="dummy", seed=2)).load("cpu")
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert not torch.equal(a.lm_head.weight, other.lm_head.weight)


def test_dummy_weights_leave_the_global_generator_alone(folder: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ModelLoader(ModelConfig(str(folder), load_format="dummy")).load("cpu")
    assert torch.equal(torch.rand(3), expected)


def test_the_log_says_what_was_decided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logger = init_logger("folovllm.model_loader")
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: level >= logging.INFO)
    monkeypatch.setattr(logger, "handle", lambda record: said.append(record.getMessage()))
    ModelLoader(ModelConfig(str(folder), dtype="bfloat16")).load("cpu")
    assert said == [f"loading {folder} as torch.bfloat16 on cpu"]


# --- checkpoints that do not fit


def test_a_missing_tensor_is_named_and_not_filled_with_noise(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    edit_tensors(made, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelLoadError, match=r"its checkpoint lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        ModelLoader(ModelConfig(str(made))).load("cpu")


def test_a_truncated_download_is_a_load_error(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    weights = made / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot be loaded: Error while deserializing header"):
        ModelLoader(ModelConfig(str(made))).load("cpu")


# --- the tokenizer and the ends of a text


def test_the_tokenizer_pads_on_the_left(folder: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(str(folder)))
    batch = tokenizer(["abc", "a"], padding=True)
    assert batch["input_ids"][1][-1] == ord("a")  # the last column holds each prompt's last token
    assert batch["attention_mask"] == [[1, 1, 1], [0, 0, 1]]


def test_a_tokenizer_may_come_from_a_folder_of_its_own(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    only_tokenizer = tmp_path / "tokenizer"
    only_tokenizer.mkdir()
    add_byte_tokenizer(only_tokenizer)
    tokenizer = load_tokenizer(ModelConfig(str(made), tokenizer=str(only_tokenizer)))
    assert tokenizer("A")["input_ids"] == [65]


def test_a_tokenizer_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    add_byte_tokenizer(tmp_path / "mine")
    assert load_tokenizer(ModelConfig("nobody/nothing", tokenizer="~/mine"))("A")["input_ids"] == [65]


def test_a_tokenizer_that_is_not_there_is_named_as_one(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^tokenizer .*'/no/such/folder'"):
        load_tokenizer(ModelConfig(str(folder), tokenizer="/no/such/folder"))


def test_a_slow_tokenizer_is_refused_not_ignored(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="^tokenizer_mode 'slow' is not available"):
        load_tokenizer(ModelConfig(str(folder), tokenizer_mode="slow"))
