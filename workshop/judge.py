"""How good is the model? Every glossary term in wordings it never saw, and stories read against their templates.

An answer counts when it is the definition, word for word or nearly (similarity of at least 0.9), in the language of the
question, and ends by itself. A story counts when every sentence is one the templates can make (so its grammar is known)
and it names no more than two characters.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from workshop.glossary import LANGS, Lang, judge_questions, load_glossary
from workshop.stories import load_stories, names_in, sentence_patterns, split_sentences

NEARLY = 0.9
ROWS = (  # what is reported: label, how many, of how many
    ("terms answered, unseen wordings, temperature 0", "terms_right", "terms"),
    ("questions answered", "right", "questions"),
    ("answered word for word", "exact", "questions"),
    ("stories that end, temperature 0.8", "stories_ended", "stories"),
    ("stories with at most two names", "stories_consistent", "stories"),
    ("story sentences the templates can make", "sentences_known", "sentences"),
)


@dataclass(slots=True)
class Verdict:
    """What was right for one language. A term counts when most of its unseen wordings are answered correctly."""

    terms: int = 0
    terms_right: int = 0
    questions: int = 0
    exact: int = 0
    right: int = 0
    stories: int = 0
    stories_ended: int = 0
    sentences: int = 0
    sentences_known: int = 0
    stories_consistent: int = 0
    wrong: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    ended: bool


class Judge:
    def __init__(self, folder: Path, batch_size: int = 64) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        # transformers mixes `generate` in where type checkers do not see a method.
        self.generate: Callable[..., torch.Tensor] = self.model.generate  # type: ignore[assignment]
        self.batch_size = batch_size

    def chat(self, questions: list[str]) -> list[Reply]:
        """Greedy answers, each question its own conversation."""
        return self.answer([[{"role": "user", "content": q}] for q in questions])

    def answer(self, conversations: list[list[dict[str, str]]], max_new_tokens: int = 110) -> list[Reply]:
        return self.complete([self._prompt(messages) for messages in conversations], max_new_tokens)

    @torch.no_grad()
    def complete(self, prompts: list[str], max_new_tokens: int, temperature: float = 0.0) -> list[Reply]:
        replies: list[Reply] = []
        ends = self.model.generation_config.eos_token_id
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        for i in range(0, len(prompts), self.batch_size):
            batch = self.tokenizer(prompts[i : i + self.batch_size], return_tensors="pt", padding=True)
            output = self.generate(**batch, max_new_tokens=max_new_tokens, **sampling)
            for row in output[:, batch["input_ids"].shape[1] :]:
                text = str(self.tokenizer.decode(row, skip_special_tokens=True))
                replies.append(Reply(text, ended=any(end in row for end in ends)))
        return replies

    def judge(self, lang: Lang, wordings: int, stories: int) -> Verdict:
        verdict = Verdict()
        self._judge_terms(lang, wordings, verdict)
        self._judge_stories(lang, stories, verdict)
        return verdict

    def _judge_terms(self, lang: Lang, wordings: int, verdict: Verdict) -> None:
        per_term = len(load_glossary().unseen[lang])
        cases = [case for i, case in enumerate(judge_questions(lang)) if i % per_term < wordings]
        replies = self.chat([question for _, question in cases])
        right_by_term: dict[str, int] = {}
        for (term, question), reply in zip(cases, replies, strict=True):
            right = is_right(reply, term.answer(lang))
            verdict.questions += 1
            verdict.exact += reply.ended and reply.text == term.answer(lang)
            verdict.right += right
            right_by_term[term.id] = right_by_term.get(term.id, 0) + right
            if not right:
                verdict.wrong.append({"question": question, "answer": reply.text})
        verdict.terms = len(right_by_term)
        verdict.terms_right = sum(2 * right > wordings for right in right_by_term.values())

    def _judge_stories(self, lang: Lang, count: int, verdict: Verdict) -> None:
        for story in self.stories(lang, count):
            sentences = split_sentences(story.text, lang)
            verdict.stories += 1
            verdict.stories_ended += story.ended
            verdict.sentences += len(sentences)
            verdict.sentences_known += sum(bool(sentence_patterns(lang).fullmatch(s)) for s in sentences)
            verdict.stories_consistent += len(names_in(story.text, lang)) <= 2

    def stories(self, lang: Lang, count: int, temperature: float = 0.8) -> list[Reply]:
        """Asked for in chat, one hero after the other, each story sampled with the same seed."""
        torch.manual_seed(0)
        data = load_stories()[lang]
        asks, kinds = data["asks"], data["kinds"]
        questions = [asks[i % len(asks)].format(a=kinds[i % len(kinds)]) for i in range(count)]
        prompts = [self._prompt([{"role": "user", "content": question}]) for question in questions]
        return self.complete(prompts, max_new_tokens=250, temperature=temperature)

    def _prompt(self, messages: list[dict[str, str]]) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def is_right(reply: Reply, definition: str) -> bool:
    return reply.ended and SequenceMatcher(None, reply.text, definition, autojunk=False).ratio() >= NEARLY


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workshop.judge", description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", default=EMBEDDED_FOLDER, help="model folder (default: the embedded one)"
    )
    parser.add_argument("--wordings", type=int, default=99, help="unseen wordings per term and language (default: all)")
    parser.add_argument("--stories", type=int, default=32, help="stories per language")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--show-wrong", action="store_true", help="list the questions answered wrongly")
    args = parser.parse_args()
    judge = Judge(args.folder)
    verdicts = {
        lang: judge.judge(lang, min(args.wordings, len(load_glossary().unseen[lang])), args.stories) for lang in LANGS
    }
    if args.json:
        print(json.dumps({lang: figures(v) for lang, v in verdicts.items()}, ensure_ascii=False, indent=2))
        return
    console = Console()
    console.print(_table(verdicts))
    if args.show_wrong:
        for verdict in verdicts.values():
            for case in verdict.wrong:
                console.print(f"[bold]{case['question']}[/bold]\n  {case['answer']}", highlight=False)


def figures(verdict: Verdict) -> dict[str, int]:
    return {name: getattr(verdict, name) for name in verdict.__slots__ if name != "wrong"}


def _table(verdicts: dict[Lang, Verdict]) -> Table:
    table = Table(title="The embedded model, judged")
    table.add_column("what")
    for lang in verdicts:
        table.add_column({"en": "English", "zh": "Chinese"}[lang], justify="right")
    for label, part, whole in ROWS:
        table.add_row(label, *(f"{getattr(v, part)} / {getattr(v, whole)}" for v in verdicts.values()))
    return table


if __name__ == "__main__":
    main()
