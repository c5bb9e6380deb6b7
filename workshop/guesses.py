"""How many tokens a step guesses would bring the embedded model: `python -m workshop.guesses`.

Its own greedy answers to prompts that no proposer has seen are gone through once more. At each place the proposer
guesses, and as many tokens are skipped as it guessed right, and one. Nothing is timed.

    prompt lookup    what followed the last tokens earlier in the same text
    table            n-grams of the corpus it was trained on (`--table FILE` keeps the table)
    draft model      folovllm/assets/embedded-draft
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from folovllm import LLM, SamplingParams
from folovllm.engine.builder.proposer import DRAFT_FOLDER
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.spec_decode.ngram import find_continuation
from folovllm.spec_decode.ngram_table import NgramTable
from workshop.corpus import Document, documents

NUM_DOCUMENTS, TABLE_SEED = 4000, 11
NUM_PROMPTS, PROMPT_SEED = 80, 1_000_003
LENGTHS = (2, 4, 6)
Guess = Callable[[list[int], int], list[int]]
"""(token ids of a text, how many more) -> guesses."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.guesses", description=__doc__.split("\n")[0])
    parser.add_argument("--table", type=Path, metavar="FILE", help="keep the table of n-grams, for method ngram_table")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json"))
    table = corpus_table(tokenizer)
    if args.table is not None:
        table.save(args.table)
    answers = greedy_answers(LLM(dtype="float32"), list(held_out_prompts(tokenizer)), 120)
    proposers = {
        "prompt lookup": lambda text, count: find_continuation(text, 2, 4, count),
        "table": table.continuation,
        "draft model": draft_model([text for _, text in answers]),
    }
    shown = Table("tokens a step", *(f"k = {k}" for k in LENGTHS), box=None)
    for name, guess in proposers.items():
        shown.add_row(name, *(f"{tokens_per_step(answers, guess, k):.2f}" for k in LENGTHS))
    Console().print(shown)


def corpus_table(tokenizer: Tokenizer) -> NgramTable:
    texts = itertools.islice(documents(TABLE_SEED), NUM_DOCUMENTS)
    ids = (tokenizer.encode("".join(text for text, _ in document)).ids for document in texts)
    return NgramTable.of(ids, tokenizer.get_vocab_size())


def held_out_prompts(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """What a user says at the beginning of documents of another seed."""
    prompts = (_beginning(document) for document in documents(PROMPT_SEED))
    yield from itertools.islice((tokenizer.encode(text).ids for text in prompts if text), NUM_PROMPTS)


def _beginning(document: Document) -> str:
    return "".join(text for text, _ in itertools.takewhile(lambda piece: not piece[1], document))


def greedy_answers(llm: LLM, prompts: list[list[int]], max_tokens: int) -> list[tuple[int, list[int]]]:
    """(length of the prompt, token ids of prompt and answer) of each prompt."""
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
    return [
        (len(prompt), [*prompt, *output.outputs[0].token_ids]) for prompt, output in zip(prompts, outputs, strict=True)
    ]


def draft_model(texts: list[list[int]]) -> Guess:
    """A guess is the draft's own, however many come: behind a wrong one they do not count. So what it says next after
    each beginning of the texts is computed once."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DRAFT_FOLDER, dtype=torch.float32).eval()
    with torch.inference_mode():
        says = {tuple(text): model(torch.tensor([text])).logits[0].argmax(-1).tolist() for text in texts}
    whole = {text[:end]: text for text in says for end in range(len(text) + 1)}

    def guess(text: list[int], count: int) -> list[int]:
        known = whole[tuple(text)]
        return says[known][len(text) - 1 : len(text) - 1 + count]

    return guess


def tokens_per_step(answers: list[tuple[int, list[int]]], guess: Guess, k: int) -> float:
    steps = tokens = 0
    for start, text in answers:
        at = start
        while at < len(text):
            right = 0
            for token, guessed in zip(text[at:], guess(text[:at], k), strict=False):
                if token != guessed:
                    break
                right += 1
            gained = min(right + 1, len(text) - at)
            steps, tokens, at = steps + 1, tokens + gained, at + gained
    return tokens / steps


if __name__ == "__main__":
    main()
