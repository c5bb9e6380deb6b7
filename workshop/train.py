"""Makes the embedded model: tokenizer, training, bf16 export, figures. One command, one seed, CPU only.

    documents -> token stream cut into rows -> Qwen3 -> loss on what the assistant says

A draft model for it is made in the same way: one layer, and the embedded model's own tokenizer, since a guess must mean
to the model what it meant to the draft.

Matrices learn with Muon and the rest with AdamW. Rows are packed with documents that do not see each other: what
stands earlier in a row is another conversation, not an earlier turn.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config

from workshop.corpus import END_OF_TEXT, IM_END, Document, documents, story_documents
from workshop.muon import Muon
from workshop.network import TinyQwen3, to_transformers
from workshop.tokenizer import save_tokenizer, train_tokenizer

# Token ids, "is this token learnt" and the number of its document in the row, each [rows, length + 1].
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything the result depends on, besides the code and the text files."""

    seed: int = 0
    steps: int = 1400
    rows: int = 4
    length: int = 512
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    warmup: int = 40
    vocab_size: int = 3072
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    max_length: int = 1024


DRAFT = Recipe(steps=2000, hidden_size=64, intermediate_size=192, layers=1, heads=2, kv_heads=1)


def main() -> None:
    default = Recipe()
    parser = argparse.ArgumentParser(prog="python -m workshop.train", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("tiny-model"), help="folder to write (default: ./tiny-model)")
    parser.add_argument("--draft", action="store_true", help="the shape of a draft model: one layer, half as wide")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="whose tokenizer.json to use (default: one is trained)"
    )
    parser.add_argument("--steps", type=int, help=f"default: {default.steps}, of a draft {DRAFT.steps}")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--save-every", type=int, default=0, help="also export every so many steps (0: only the end)")
    args = parser.parse_args()
    recipe = DRAFT if args.draft else default
    recipe = replace(recipe, seed=args.seed, steps=args.steps or recipe.steps)
    train(recipe, args.out, args.save_every, args.tokenizer)


def train(recipe: Recipe, out: Path, save_every: int = 0, tokenizer_of: Path | None = None) -> dict[str, float]:
    """Train, export to `out`, and return the figures that are also in out/training.json.

    tokenizer_of: a folder whose tokenizer is used. `out` then gets none of its own.
    """
    torch.manual_seed(recipe.seed)
    start = time.time()
    if tokenizer_of is None:
        tokenizer = train_tokenizer(recipe.seed, recipe.vocab_size)
    else:
        tokenizer = Tokenizer.from_file(str(tokenizer_of / "tokenizer.json"))
    model = TinyQwen3(model_config(recipe, tokenizer))
    optimizers = make_optimizers(model, recipe)
    workers = Workers(model)
    batches = packed_rows(tokenizer, recipe, documents(recipe.seed))
    held_out = next(packed_rows(tokenizer, recipe, documents(recipe.seed + 1_000_003)))
    held_out_stories = next(packed_rows(tokenizer, recipe, story_documents(recipe.seed + 1_000_003)))
    figures: dict[str, float] = {"parameters": sum(p.numel() for p in model.parameters())}
    smoothed = 0.0
    with _progress() as bar:
        task = bar.add_task("training", total=recipe.steps, loss="")
        for step in range(recipe.steps):
            set_rates(optimizers, rate_factor(step, recipe))
            loss = workers.backward(next(batches))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            smoothed = loss if step == 0 else 0.95 * smoothed + 0.05 * loss
            bar.update(task, advance=1, loss=f"loss {smoothed:.3f}")
            done = step + 1
            if done == recipe.steps or (save_every and done % save_every == 0):
                seconds = time.time() - start
                figures |= {
                    "steps": done,
                    "tokens": done * recipe.rows * recipe.length,
                    "minutes": round(seconds / 60, 1),
                    "training_loss": round(smoothed, 4),
                    "held_out_loss": held_out_loss(model, held_out),
                    "held_out_story_loss": held_out_loss(model, held_out_stories),
                }
                export(model, tokenizer, recipe, figures, out)
                if tokenizer_of is None:
                    save_tokenizer(tokenizer, out, recipe.max_length)
                print(json.dumps(figures), flush=True)
    return figures


def model_config(recipe: Recipe, tokenizer: Tokenizer) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(IM_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )


def packed_rows(tokenizer: Tokenizer, recipe: Recipe, source: Iterator[Document]) -> Iterator[Batch]:
    """Rows of whole documents, one after the other, the last one cut: each row starts where a document does."""
    width = recipe.length + 1
    while True:
        ids, learnt, numbers = [], [], []
        for _ in range(recipe.rows):
            row: list[int] = []
            mask: list[bool] = []
            owner: list[int] = []
            for number in count():
                if len(row) >= width:
                    break
                for text, learn in next(source):
                    piece = tokenizer.encode(text).ids
                    row += piece
                    mask += [learn] * len(piece)
                    owner += [number] * len(piece)
            ids.append(row[:width])
            learnt.append(mask[:width])
            numbers.append(owner[:width])
        yield torch.tensor(ids), torch.tensor(learnt), torch.tensor(numbers)


def answer_loss(model: TinyQwen3, batch: Batch, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy of the learnt tokens. The head runs on their positions alone."""
    ids, learnt, numbers = batch
    targets = learnt[:, 1:]
    hidden = model(ids[:, :-1], numbers[:, :-1])[targets]
    return F.cross_entropy(F.linear(hidden, model.embedding), ids[:, 1:][targets], reduction=reduction)


@torch.no_grad()
def held_out_loss(model: TinyQwen3, batch: Batch) -> float:
    return round(answer_loss(model, batch).item(), 4)


class Workers:
    """Gradients of a batch, its rows shared out among threads that each compute alone.

    On a busy machine this is several times as fast as threads inside every operation: those meet at a barrier some
    thousand times a step, and wait each time for the one that the system did not run. The shares are fixed, and so is
    the order of their sum: the result does not depend on timing.
    """

    SHARES = 2

    def __init__(self, model: TinyQwen3) -> None:
        torch.set_num_threads(1)
        self.model = model
        self.params = list(model.parameters())
        self.pool = ThreadPoolExecutor(self.SHARES, initializer=torch.set_num_threads, initargs=(1,))

    def backward(self, batch: Batch) -> float:
        """Fill `.grad` of every parameter; the mean loss of the batch."""
        total = int(batch[1][:, 1:].sum())
        shares = zip(*(part.chunk(self.SHARES) for part in batch), strict=True)
        results = list(self.pool.map(lambda share: self._one(share, total), shares))
        for param, *grads in zip(self.params, *(grads for _, grads in results), strict=True):
            param.grad = torch.stack(grads).sum(0)
        return sum(loss for loss, _ in results)

    def _one(self, share: Batch, total: int) -> tuple[float, tuple[torch.Tensor, ...]]:
        loss = answer_loss(self.model, share, reduction="sum") / total
        return loss.item(), torch.autograd.grad(loss, self.params)


def make_optimizers(model: TinyQwen3, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [model.embedding, *(p for p in model.parameters() if p.ndim == 1)]
    return [
        Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.02),
        torch.optim.AdamW(others, lr=recipe.other_rate, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    ]


def rate_factor(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_rate", group["lr"]) * factor


def export(model: TinyQwen3, tokenizer: Tokenizer, recipe: Recipe, figures: dict[str, float], out: Path) -> None:
    """The folder as transformers reads it, but for the tokenizer: bf16 weights, generation defaults, figures."""
    out.mkdir(parents=True, exist_ok=True)
    twin = to_transformers(model)
    twin.bfloat16()
    ends = [tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)]
    twin.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1], max_new_tokens=200)
    twin.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    said = {"recipe": asdict(recipe), "figures": figures}
    (out / "training.json").write_text(json.dumps(said, indent=2) + "\n", "utf-8")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )


if __name__ == "__main__":
    main()
