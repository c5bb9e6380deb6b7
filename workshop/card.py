"""Writes a model folder's card, README.md, from figures that programs measured: `python -m workshop.card FOLDER`.

training.json comes from the training run; the judge runs here and leaves judge.json beside it. No number is typed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from workshop.glossary import LANGS, load_glossary
from workshop.judge import ROWS, Judge, figures
from workshop.stories import story_templates

CARD = """\
---
language: [en, zh]
license: apache-2.0
library_name: transformers
---

# The embedded model

A very small language model that ships with FoloVLLM, so that every demo, test and lab works with no
download. It answers questions about {terms} terms of LLM inference in English and in Chinese, and tells short
template stories in both.

| | |
|---|---|
| architecture | Qwen3, tied embeddings |
| shape | {layers} layers, hidden size {hidden_size}, {heads} query and {kv_heads} KV heads of {head_dim} |
| parameters | {parameters:,} |
| weights | bfloat16, {megabytes:.1f} MB |
| vocabulary | {vocab_size:,} tokens, byte-level BPE |
| context | {max_length} tokens; trained on rows of {length} |
| ends of text | `<|im_end|>` (chat), `<|endoftext|>` (plain text) |

## How it was made

In `workshop/` of FoloVLLM's repository, which is no part of the package:

```bash
python -m workshop.train --out tiny-model   # seed {seed}, CPU only
python -m workshop.card tiny-model          # judge it, write this card
```

{steps:,} steps of {rows} rows, {tokens:,} tokens in all, in {minutes} minutes on two cores shared with other
work. Training loss at the end {training_loss}; on text from another seed {held_out_loss} (float32, before rounding
to bfloat16). All the text comes from `glossary.toml`, `stories.toml` and `smalltalk.toml` there.
Muon for the matrices, AdamW for the rest, cosine schedule, loss on the assistant's words and on plain
text only.

## How good it is

Measured on these bfloat16 weights with transformers, by `python -m workshop.judge`. The wordings of the
questions do not occur in training. A term counts when most of its wordings are answered with the definition
(similarity of at least 0.9), in the language of the question, ending by itself; a story's sentence counts
when the templates can make it.

| | English | Chinese |
|---|---:|---:|
{rows_table}

## What it is not

It does not reason, and it knows nothing beyond those terms and stories: asked for anything else, it says so
or answers wrongly. Its answers are definitions learnt by heart, its stories recombine {sentences} template
sentences. Its story sentences are grammatical, but it does not keep track of who is in them: a hero called Lily
in one sentence is Tom in the next, and a story asked for about a rabbit may be about a sheep. The row on names
shows it. It is no base for fine-tuning and no measure of what an engine can do with a real model.
"""


def write_card(folder: Path, stories: int = 100) -> None:
    judge = Judge(folder)
    verdicts = {lang: figures(judge.judge(lang, len(load_glossary().unseen[lang]), stories)) for lang in LANGS}
    (folder / "judge.json").write_text(json.dumps(verdicts, indent=2) + "\n", "utf-8")
    (folder / "README.md").write_text(card(folder, verdicts), encoding="utf-8")


def card(folder: Path, verdicts: dict[Any, dict[str, int]]) -> str:
    training = json.loads((folder / "training.json").read_text("utf-8"))
    facts = training["recipe"] | training["figures"]
    facts["vocab_size"] = json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
    table = [
        f"| {label} | " + " | ".join(f"{verdicts[lang][part]} of {verdicts[lang][whole]}" for lang in LANGS) + " |"
        for label, part, whole in ROWS
    ]
    return CARD.format(
        **facts,
        terms=len(load_glossary().terms),
        megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
        rows_table="\n".join(table),
        sentences=sum(len(story_templates(lang)) for lang in LANGS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.card", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=EMBEDDED_FOLDER)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    write_card(folder)
    print(folder / "README.md")


if __name__ == "__main__":
    main()
