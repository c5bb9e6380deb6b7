"""Small models whose answer is a vector, in folders as others write them; and what transformers and torch make of the
same prompts, in float32.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from folovllm import LLMEngine, PoolingParams
from tests.helpers import add_byte_tokenizer, tiny_hf_config

CLASSES = {
    "Model": AutoModel,
    "ForCausalLM": AutoModelForCausalLM,
    "ForSequenceClassification": AutoModelForSequenceClassification,
}
SENTENCE_TRANSFORMERS = "sentence_transformers.models"


def make_folder(folder: Path, ending: str = "Model", kind: str = "qwen3", **over: Any) -> torch.nn.Module:
    """Saves a random model of that class, and a tokenizer of bytes; returns it."""
    fields = {"vocab_size": 260, "num_hidden_layers": 3, "pad_token_id": 0, "tie_word_embeddings": True, **over}
    model = CLASSES[ending].from_config(tiny_hf_config(kind, **fields)).float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_(1.0 + noise if "norm" in name else noise)
    saved(model, folder)
    return model  # type: ignore[no-any-return]


def saved(model: torch.nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)  # type: ignore[operator]
    add_byte_tokenizer(folder)
    return folder


def add_modules(folder: Path, mode: dict[str, Any], *behind: str, first: str = "") -> Path:
    """What sentence-transformers writes beside a model: a Transformer, a Pooling of that mode, and these."""
    own = "LogitScore" if "LogitScore" in behind else "Pooling"
    paths = {"Transformer": first}
    paths |= {name: f"{at}_{name}" for at, name in enumerate(dict.fromkeys([own, *behind]), 1)}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"{SENTENCE_TRANSFORMERS}.{name}"}
        for at, (name, path) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / paths[own]).mkdir(exist_ok=True)
    (folder / paths[own] / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **mode}))
    return folder


def prompts_that_begin_alike(longest: int = 64) -> list[list[int]]:
    rng = random.Random(0)
    long = [rng.randrange(256) for _ in range(longest)]
    tails = [[rng.randrange(256) for _ in range(rng.randrange(1, 16))] for _ in range(4)]
    return [*(long[:30] + tail for tail in tails), long[:14], [7], long]


@torch.inference_mode()
def pooled(model: torch.nn.Module, prompts: list[list[int]], pooling_type: str = "LAST") -> torch.Tensor:
    """[prompts, hidden]: each prompt alone, through transformers."""
    rows = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    return torch.stack([each[-1] if pooling_type == "LAST" else each.mean(dim=0) for each in rows])


def embeddings(model: torch.nn.Module, prompts: list[list[int]], pooling_type: str = "LAST") -> torch.Tensor:
    return F.normalize(pooled(model, prompts, pooling_type), dim=-1)


@torch.inference_mode()
def logits(model: torch.nn.Module, prompts: list[list[int]]) -> torch.Tensor:
    """[prompts, labels, or the vocabulary]: behind the last token of each."""
    every = [model(torch.tensor([prompt])).logits for prompt in prompts]
    return torch.cat([each[:, -1] if each.dim() == 3 else each for each in every])


def serve(
    engine: LLMEngine, prompts: list[list[int]], params: PoolingParams | None = None, seed: int = 0, **options: Any
) -> torch.Tensor:
    """[prompts, size]; they arrive in another order, a few while others run."""
    order, rng, found = list(range(len(prompts))), random.Random(seed), dict[int, list[float]]()
    rng.shuffle(order)
    while order or engine.has_unfinished_requests():
        for number in [order.pop() for _ in range(min(len(order), rng.randrange(4)))]:
            ids = {"prompt_token_ids": prompts[number]}
            engine.add_request(str(number), ids, params or PoolingParams(), **options)
        for output in engine.step():
            assert output.finished
            assert [(each.token_ids, each.finish_reason) for each in output.outputs] == [([], "stop")]
            found[int(output.request_id)] = output.pooling_output or []
        engine.scheduler.check_invariants()
    return torch.tensor([found[number] for number in range(len(prompts))])


def close(got: Any, wanted: torch.Tensor, most: float = 5e-6) -> None:
    got = torch.as_tensor(got)
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) < most
