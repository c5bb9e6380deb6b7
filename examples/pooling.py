"""Search over this project's notes: each section becomes a vector once, a question becomes one, and the nearest win.

    python examples/pooling.py                                             the embedded model, and three questions
    python examples/pooling.py Qwen/Qwen3-Embedding-0.6B "What is a block table?"

The embedded model has learnt to go on with texts and not to search, so that its first hit is sometimes odd. What is
shown is the way: a folder says how rows are pooled, and vectors of length 1 are compared by one product. A section is
found by its own second half more often than chance has it, and more often by a mean than by the last token.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import _tree  # noqa: F401 - folovllm is this tree's
import numpy as np

from folovllm import LLM
from folovllm.model_loader.model_files import EMBEDDED_FOLDER

NOTES = Path(__file__).parents[1] / "docs" / "en"
QUESTIONS = ["How is a block found again by the next prompt?", "Which blocks are given back first?"]
HALF = 48  # tokens


def sections() -> Iterator[tuple[str, str]]:
    """(where, text) of what M3 and M6 say of blocks."""
    for page in sorted(path for name in ("m3", "m6") for path in NOTES.glob(f"{name}/*.md")):
        for part in re.split(r"\n## ", page.read_text(encoding="utf-8"))[1:]:
            title, _, text = part.partition("\n")
            yield f"{page.parent.name}/{page.stem}: {title}", re.sub(r"(?s)```.*?```|<[^>]*>|[*`|$#]", " ", text)


def with_pooling(model: Path, mode: str, folder: Path) -> str:
    """The model's files, and beside them what sentence-transformers would have written."""
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}), encoding="utf-8")
    return str(folder)


def vectors(llm: LLM, prompts: list[list[int]] | list[str]) -> np.ndarray:
    """[prompts, size], each of length 1."""
    return np.array([output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)])


def search(llm: LLM, questions: list[str]) -> None:
    names, texts = zip(*sections(), strict=True)
    tokenizer = llm.get_tokenizer()
    halves = [tokenizer(text[:1500])["input_ids"][: 2 * HALF] for text in texts]
    index = vectors(llm, [half[:HALF] for half in halves])
    nearest = np.argsort(-vectors(llm, questions) @ index.T, axis=1)
    for question, order in zip(questions, nearest, strict=True):
        print(f"{question}  {'; '.join(names[at] for at in order[:2])}")
    whole = [at for at, half in enumerate(halves) if len(half) == 2 * HALF]
    likeness = vectors(llm, [halves[at][HALF:] for at in whole]) @ index[whole].T
    ranks = (likeness > likeness.diagonal()[:, None]).sum(axis=1)
    print(f"{(ranks < 5).sum()} of {len(whole)} second halves have their first among the 5 nearest")


def main() -> None:
    if len(sys.argv) > 1:
        search(LLM(sys.argv[1]), sys.argv[2:] or QUESTIONS)
        return
    for mode in ("mean", "lasttoken"):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{mode}:")
            search(LLM(with_pooling(EMBEDDED_FOLDER, mode, Path(folder)), dtype="float32"), QUESTIONS)


if __name__ == "__main__":
    main()
