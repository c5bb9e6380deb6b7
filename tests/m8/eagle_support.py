"""Shared by the tests of heads that read the target: plain torch's head beside Hugging Face's model, and a folder as
MiMo's is."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from folovllm import LLMEngine
from folovllm.request import Sequence
from tests.helpers import make_hf_model

PREFIX = "model.mtp_layers.0."
BEFORE = {"token_layernorm", "hidden_layernorm", "input_proj"}


class HeadOracle:
    """The head of `folder` in plain torch, on the hidden states of Hugging Face's `model`: both computed anew for each
    guess, in float32."""

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        self.model, config = model, copy.deepcopy(model.config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        stored = load_file(folder / "model.safetensors")
        mine = {name.removeprefix(PREFIX): t.float() for name, t in stored.items() if name.startswith(PREFIX)}
        self.own = {name.partition(".")[0]: mine.pop(name) for name in list(mine) if name.partition(".")[0] in BEFORE}
        self.body = (Qwen3Model if config.model_type == "qwen3" else Qwen2Model)(config).eval()
        self.body.embed_tokens = None
        layer = {f"layers.0.{name}": t for name, t in mine.items() if name != "final_layernorm.weight"}
        self.body.load_state_dict(layer | {"norm.weight": mine["final_layernorm.weight"]})

    @torch.no_grad()
    def says(self, token_ids: list[int], count: int) -> list[int]:
        ids, size, eps = torch.tensor([token_ids]), self.model.config.hidden_size, self.model.config.rms_norm_eps
        hidden = self.model.model(ids).last_hidden_state
        before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        for _ in range(count):
            parts = ((before, "hidden_layernorm"), (self.model.model.embed_tokens(ids), "token_layernorm"))
            normed = [F.rms_norm(part, (size,), self.own[name], eps) for part, name in parts]
            x = F.linear(torch.cat(normed, -1), self.own["input_proj"])
            out = self.body(inputs_embeds=x, use_cache=False).last_hidden_state
            token = self.model.lm_head(out[:, -1:]).argmax(-1)
            ids, before = torch.cat([ids, token], 1), torch.cat([before, out[:, -1:]], 1)
        return ids[0, len(token_ids) :].tolist()


def watch_guesses(engine: LLMEngine, monkeypatch: Any) -> list[tuple[list[int], list[int]]]:
    """(token ids, what was guessed behind them) of each guess from now on."""
    said: list[tuple[list[int], list[int]]] = []
    assert engine.runner.speculation is not None
    proposer = engine.runner.speculation.proposer
    propose = proposer.propose

    def noted(seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        drafts = propose(seqs, counts)
        said.extend((seq.get_token_ids(), draft) for seq, draft in zip(seqs, drafts, strict=True) if draft)
        return drafts

    monkeypatch.setattr(proposer, "propose", noted)
    return said


def mimo_folder(folder: Path, **over: Any) -> Path:
    """A random model of MiMo's layout: Qwen2's layers, and one more that reads the last hidden states."""
    model = make_hf_model("qwen2", seed=3, **over)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    add_head(folder, make_hf_model("qwen2", seed=4, **over))
    return folder


def add_head(folder: Path, model: torch.nn.Module) -> None:
    """Give the model in `folder` a head: the last layer of `model`, and random weights around it."""
    generator, size = torch.Generator().manual_seed(5), model.config.hidden_size
    own = {f"{name}.weight": 1 + 0.1 * torch.randn(size, generator=generator) for name in (*BEFORE, "final_layernorm")}
    own["input_proj.weight"] = 0.2 * torch.randn(size, 2 * size, generator=generator)
    head = {PREFIX + name: t for name, t in (model.model.layers[-1].state_dict() | own).items()}
    stored = folder / "model.safetensors"
    save_file(load_file(stored) | head, stored, {"format": "pt"})


def mimo_target(folder: Path) -> torch.nn.Module:
    """Hugging Face's model of mimo_folder(), without its head."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**config, "model_type": "qwen2"}))
    stored = {k: t for k, t in load_file(folder / "model.safetensors").items() if not k.startswith(PREFIX)}
    model.load_state_dict(stored)
    return model.float().eval()
