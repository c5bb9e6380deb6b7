"""Makes the embedded model's head, which guesses from its hidden states: `python -m workshop.head`. One seed, CPU only.

    place i    token i ─ embed ─ norm ─┐
               hidden state i - 1 ─ norm ─ fc ─ one layer ─ norm ─▶ hidden state i, about ─ LM head ─▶ token i + 1

The first guess reads the model's hidden states, and each later one what the head itself said: so the second pass of a
training step reads the first one's output. Both learn the model's own distribution, and its hidden state a little.

EAGLE (Li et al., 2024, arXiv:2401.15077) for the loss, DeepSeek-V3 (arXiv:2412.19437) and MiMo for the norms.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model, Qwen3RMSNorm

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from workshop.corpus import documents, story_documents

PREFIX = "model.mtp_layers.0."


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything the result depends on, besides the code, the text files and the model."""

    seed: int = 0
    steps: int = 3500
    rows: int = 2
    length: int = 320
    rate: float = 3e-3
    warmup: int = 20
    later: float = 0.5
    """How much the guess that reads another one counts beside the first."""
    hidden: float = 0.1
    """How much the distance to the model's hidden state counts."""


class Head(torch.nn.Module):
    """In plain torch. The layer begins as the model's last one, and fc hands the hidden state on."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        super().__init__()
        config: Qwen3Config = copy.deepcopy(model.config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        size = config.hidden_size
        self.body = Qwen3Model(config)
        self.body.embed_tokens = None  # type: ignore[assignment]
        self.body.layers[0].load_state_dict(model.model.layers[-1].state_dict())
        self.body.norm.load_state_dict(model.model.norm.state_dict())
        self.hidden_norm, self.token_norm = (Qwen3RMSNorm(size, config.rms_norm_eps) for _ in range(2))
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, :size] += torch.eye(size)

    def forward(self, embedded: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """embedded: of each token; before: the hidden state before it. Both [rows, length, hidden], as the result."""
        x = self.fc(torch.cat([self.hidden_norm(before), self.token_norm(embedded)], -1))
        return self.body(inputs_embeds=x, use_cache=False).last_hidden_state

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As MiMo names them."""
        own = {"hidden_norm": "hidden_layernorm", "token_norm": "token_layernorm", "fc": "input_proj"}
        for name, weight in self.state_dict().items():
            first, _, rest = name.partition(".")
            if first == "body":
                rest = rest.replace("layers.0.", "").replace(
                    "norm.weight", "final_layernorm.weight", rest == "norm.weight"
                )
            yield PREFIX + (f"{own[first]}.{rest}" if first in own else rest), weight


def shifted(hidden: torch.Tensor) -> torch.Tensor:
    """To each place the hidden state before it; to the first one zeros."""
    return F.pad(hidden, (0, 0, 1, 0))[:, :-1]


def batches(recipe: Recipe, seed: int) -> Iterator[torch.Tensor]:
    """Token ids [rows, length]: documents one after the other, cut where a row ends; of three, one is a story."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    count, flat = recipe.rows * recipe.length, []
    sources = (story_documents(seed), documents(seed), documents(seed + 1))
    while True:
        for source in sources:
            flat += tokenizer("".join(text for text, _ in next(source)))["input_ids"]
        while len(flat) >= count:
            yield torch.tensor(flat[:count]).view(recipe.rows, recipe.length)
            flat = flat[count:]


@torch.no_grad()
def agreement(model: Qwen3ForCausalLM, head: Head, ids: torch.Tensor, depth: int = 4) -> list[float]:
    """The share of places where the 1st, 2nd … guess is the model's likeliest token, if those before it were right."""
    hidden, embedded = model.model(ids).last_hidden_state, model.model.embed_tokens(ids)
    best, before, shares = model.lm_head(hidden).argmax(-1), shifted(hidden), []
    for _ in range(depth):
        out = head(embedded, before)
        shares.append(round((model.lm_head(out).argmax(-1) == best).float().mean().item(), 3))
        before = shifted(out)
    return shares


def loss_of(model: Qwen3ForCausalLM, head: Head, ids: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    with torch.no_grad():
        hidden, embedded = model.model(ids).last_hidden_state, model.model.embed_tokens(ids)
        wanted = model.lm_head(hidden).softmax(-1).flatten(0, 1)
    before, loss = shifted(hidden), torch.zeros(())
    for weight in (1.0, recipe.later):
        out = head(embedded, before)
        said = F.cross_entropy(model.lm_head(out).flatten(0, 1), wanted)
        loss, before = loss + weight * (said + recipe.hidden * F.smooth_l1_loss(out, hidden)), shifted(out)
    return loss


def train(recipe: Recipe, out: Path) -> None:
    """Writes out/model.safetensors in bfloat16, out/config.json and out/training.json."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32).eval().requires_grad_(False)
    head, start = Head(model), time.process_time()
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)
    rows, held_out = batches(recipe, 10 * recipe.seed + 5), next(batches(recipe, 1_000_003))
    for step in range(recipe.steps):
        rate = min(1, (step + 1) / recipe.warmup) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / recipe.steps)))
        optimizer.param_groups[0]["lr"] = recipe.rate * rate
        optimizer.zero_grad()
        loss = loss_of(model, head, next(rows), recipe)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 3), agreement(model, head, held_out), flush=True)
    figures = {
        "parameters": sum(p.numel() for p in head.parameters()),
        "tokens": recipe.steps * recipe.rows * recipe.length,
        "cpu_seconds": round(time.process_time() - start),
        "agreement": agreement(model, head, held_out),
    }
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.bfloat16().contiguous() for name, weight in head.named_weights()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    config = json.loads((EMBEDDED_FOLDER / "config.json").read_text("utf-8"))
    config |= {"num_hidden_layers": 1, "num_nextn_predict_layers": 1, "layer_types": ["full_attention"]}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    said = {"recipe": asdict(recipe), "figures": figures}
    (out / "training.json").write_text(json.dumps(said, indent=2) + "\n", "utf-8")
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.head", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("tiny-head"), help="folder to write (default: ./tiny-head)")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help=f"default: {Recipe().steps}")
    args = parser.parse_args()
    train(Recipe(steps=args.steps), args.out)


if __name__ == "__main__":
    main()
