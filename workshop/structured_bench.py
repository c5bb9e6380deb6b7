"""Which library for constrained decoding: llguidance, xgrammar and outlines-core on one vocabulary of 151,936 tokens.

    python -m workshop.structured_bench          # a table; each library in a process of its own

For each: the installed size, seconds to import it and to take up the vocabulary, milliseconds to compile a schema (a
second one, when all is warm), and microseconds for a token, its mask and its acceptance: median, mean and 99th
percentile.
The vocabulary is made of the words and pieces of Python's own source files, with Chinese among them, since real
tokenizers of this size are not at hand. The texts that are followed are valid answers, cut into these tokens greedily.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

VOCAB_SIZE = 151_936
LIBRARIES = {
    "llguidance": ["llguidance"],
    "xgrammar": ["xgrammar", "apache-tvm-ffi"],
    "outlines-core": ["outlines-core"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["猫", "dog", "bird"]},
        "age": {"type": "integer"},
        "weight": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "phone": {"type": "integer"}},
            "required": ["city", "phone"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "age", "weight", "tags", "owner"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
ANSWER = {
    "name": "A cat that sleeps on the old wall 一只睡在旧墙上的猫",
    "kind": "猫",
    "age": 7,
    "weight": 4.25,
    "tags": ["calm", "grey and white", "likes fish"],
    "owner": {"city": "Hangzhou", "phone": 5550199},
}


def vocabulary() -> list[bytes]:
    """256 bytes, then the most frequent pieces of text, then numbers; the last token ends the text."""
    found: Counter[bytes] = Counter()
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:1500]:
        for word in file.read_text(encoding="utf-8", errors="ignore").split():
            for end in range(2, min(len(word), 12) + 1):
                found[word[:end].encode()] += 1
                found[b" " + word[:end].encode()] += 1
    chinese = [chr(code).encode() for code in range(0x4E00, 0x9FA5)]
    common = [piece for piece, _ in found.most_common(VOCAB_SIZE)]
    pieces = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *chinese, *common])
    return [*list(pieces)[: VOCAB_SIZE - 1], b"<|end|>"]


class Greedy:
    """Text becomes tokens: the longest piece each time."""

    def __init__(self, vocab: list[bytes]) -> None:
        self.id_of = {piece: token_id for token_id, piece in enumerate(vocab[:-1])}
        self.longest = max(map(len, vocab))

    def __call__(self, text: bytes) -> list[int]:
        at, ids = 0, []
        while at < len(text):
            ends = range(min(len(text), at + self.longest), at, -1)
            end = next(end for end in ends if text[at:end] in self.id_of)
            ids.append(self.id_of[text[at:end]])
            at = end
        return ids


class LLGuidance:
    def __init__(self, vocab: list[bytes]) -> None:
        import llguidance
        import llguidance.numpy

        class Tokens(Greedy):
            eos_token_id, bos_token_id = len(vocab) - 1, None
            tokens, special_token_ids = vocab, (len(vocab) - 1,)

        self.lib = llguidance
        self.tokens = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens(vocab)))
        self.mask = llguidance.numpy.allocate_token_bitmask(1, len(vocab))

    def compile(self, schema: dict[str, Any]) -> Any:
        return self.lib.LLMatcher(self.tokens, self.lib.LLMatcher.grammar_from_json_schema(schema))

    def step(self, matcher: Any, token_id: int) -> bool:
        self.lib.numpy.fill_next_token_bitmask(matcher, self.mask)
        return bool(matcher.consume_token(token_id))


class XGrammar:
    def __init__(self, vocab: list[bytes]) -> None:
        import xgrammar

        self.lib = xgrammar
        info = xgrammar.TokenizerInfo(vocab, xgrammar.VocabType.RAW, stop_token_ids=[len(vocab) - 1])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.mask = xgrammar.allocate_token_bitmask(1, len(vocab))

    def compile(self, schema: dict[str, Any]) -> Any:
        return self.lib.GrammarMatcher(self.compiler.compile_json_schema(json.dumps(schema)))

    def step(self, matcher: Any, token_id: int) -> bool:
        matcher.fill_next_token_bitmask(self.mask)
        return bool(matcher.accept_token(token_id))


class OutlinesCore:
    def __init__(self, vocab: list[bytes]) -> None:
        import outlines_core
        from outlines_core.kernels.torch import allocate_token_bitmask, fill_next_token_bitmask

        self.lib, self.fill = outlines_core, fill_next_token_bitmask
        self.vocab = outlines_core.Vocabulary(len(vocab) - 1, {piece: [i] for i, piece in enumerate(vocab[:-1])})
        self.mask = allocate_token_bitmask(len(vocab))

    def compile(self, schema: dict[str, Any]) -> Any:
        from outlines_core.json_schema import build_regex_from_schema

        return self.lib.Guide(self.lib.Index(build_regex_from_schema(json.dumps(schema)), self.vocab))

    def step(self, guide: Any, token_id: int) -> bool:
        self.fill(guide, self.mask)
        guide.advance(token_id, return_tokens=False)
        return True


KINDS: dict[str, Any] = {"llguidance": LLGuidance, "xgrammar": XGrammar, "outlines-core": OutlinesCore}


def measure(name: str) -> dict[str, Any]:
    vocab = vocabulary()
    # All three take one space after a separator.
    ids = Greedy(vocab)(json.dumps(ANSWER, ensure_ascii=False).encode())
    began = time.perf_counter()
    library = KINDS[name](vocab)
    start = time.perf_counter() - began
    library.compile(OTHER)
    began = time.perf_counter()
    matcher = library.compile(SCHEMA)
    compiled = time.perf_counter() - began
    micros = []
    for token_id in ids:
        began = time.perf_counter()
        if not library.step(matcher, token_id):
            raise RuntimeError(f"{name} refused token {vocab[token_id]!r}")
        micros.append((time.perf_counter() - began) * 1e6)
    files = [file for dist in LIBRARIES[name] for file in distribution(dist).files or []]
    size = sum(Path(str(file.locate())).stat().st_size for file in files if Path(str(file.locate())).is_file())
    micros.sort()
    return {
        "library": name,
        "version": distribution(name).version,
        "MiB": round(size / 2**20, 1),
        "start s": round(start, 2),
        "compile ms": round(compiled * 1e3, 1),
        "us/token": round(statistics.median(micros), 1),
        "mean us": round(statistics.mean(micros), 1),
        "p99 us": round(micros[int(len(micros) * 0.99)], 1),
        "tokens": len(ids),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    from rich.console import Console
    from rich.table import Table

    rows = []
    for name in KINDS:
        command = [sys.executable, "-m", "workshop.structured_bench", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        line = (done.stderr or "no output").strip().splitlines()[-1]
        rows.append(json.loads(done.stdout) if done.returncode == 0 else {"library": name, "version": line})
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(row.get(column, "–")) for column in rows[0]))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
