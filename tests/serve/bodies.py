"""Bodies that are made to cost much, each as large as the server takes one, and what they cost its other clients.

    python -m tests.serve.bodies [NAME …]

starts `folovllm serve` in a process of its own, sends one after the other, and prints for each how long /health waited
at most, how another client's answer compares with its usual time, and how much memory stayed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import httpx

from folovllm.sample.structured.grammars import MAX_FORM_CHARS
from tests.serve.support import program

MOST = SimpleNamespace(
    body=2 * 2**20, prompts=256, messages=4096, parts=1024, fields=64, stop=64, stop_token_ids=128, bad_words=128,
    allowed_token_ids=1024, logit_bias=1024, choice=1024, tokens=2**18, stop_length=1024, bad_word_length=256,
    choice_length=1024, regex_length=4096, name_length=1024, json=2**16,
)  # fmt: skip
"""How much a body may hold, as protocol.py and body.py have it."""
COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"


@dataclass(frozen=True)
class Body:
    """`says` begins the error's message, and `param` is its field; None for one that is answered."""

    name: str
    path: str
    content: bytes
    says: str | None = None
    param: str | None = None

    @property
    def status(self) -> int:
        return 200 if self.says is None else 400


def filled(head: str, entry: str, tail: str, between: str = ",") -> bytes:
    """As many entries as a body can hold. In an entry, % is its number."""
    size = len((entry + between).encode()) + (6 if "%" in entry else 0)
    count = (MOST.body - len(head + tail)) // size
    text = (
        between.join([entry] * count)
        if "%" not in entry
        else between.join(entry.replace("%", f"{number:07}") for number in range(count))
    )
    return f"{head}{text}{tail}".encode()


def with_prompt(**fields: object) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 1, **fields}).encode()


def deep(levels: int, opening: str, core: str, closing: str) -> str:
    return opening * levels + core + closing * levels


def too_many() -> Iterator[Body]:
    """Lists and objects without an end, of the right and of the wrong types."""

    def entries(name: str, most: int, got: str = "") -> str:
        return f"{name} must have at most {most} entries, got {got}"

    body = filled('{"prompt":"a","stop":[', "0", "]}")
    yield Body("stop of numbers", COMPLETIONS, body, "stop[0] must be text, got 0", "stop[0]")
    yield Body(
        "stop of texts", COMPLETIONS, filled('{"prompt":"a","stop":[', '"%"', "]}"), entries("stop", MOST.stop), "stop"
    )
    for name in ("stop_token_ids", "bad_words", "allowed_token_ids"):
        entry = '"%"' if name == "bad_words" else "7"
        body = filled(f'{{"prompt":"a","{name}":[', entry, "]}")
        yield Body(name, COMPLETIONS, body, entries(name, getattr(MOST, name)), name)
    body = filled('{"prompt":"a","logit_bias":{', '"%":1', "}}")
    yield Body("logit_bias", COMPLETIONS, body, entries("logit_bias", MOST.logit_bias), "logit_bias")
    body = filled('{"prompt":"a","structured_outputs":{"choice":[', '"%"', "]}}")
    name = "structured_outputs.choice"
    yield Body("choice", COMPLETIONS, body, entries(name, MOST.choice), name)
    for what, entry in (("token ids", "[5]"), ("texts", '"a"'), ("nothing", "[]")):
        body = filled('{"max_tokens":1,"prompt":[', entry, "]}")
        yield Body(f"prompts of {what}", COMPLETIONS, body, entries("prompt", MOST.prompts), "prompt")
    body = filled('{"max_tokens":1,"prompt":[', "1.5", "]}")
    yield Body(
        "prompts of fractions", COMPLETIONS, body, "prompt[0] must be a whole number or text or a list", "prompt[0]"
    )
    body = filled('{"prompt":{', '"%":0', "}}")
    yield Body("a prompt that is an object", COMPLETIONS, body, "prompt must be text or a list, got {", "prompt")
    for what, entry in (("numbers", "0"), ("lists", "[]")):
        body = filled('{"messages":[', entry, "]}")
        yield Body(f"messages of {what}", CHAT, body, "messages[0] must be an object, got", "messages[0]")
    name = "messages[0].role"
    yield Body("messages of objects", CHAT, filled('{"messages":[', "{}", "]}"), f"{name} must be given", name)
    body = filled('{"messages":[', '{"role":"user","content":""}', "]}")
    yield Body("messages", CHAT, body, entries("messages", MOST.messages), "messages")
    name = "messages[0].content"
    body = filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}")
    yield Body("parts of a message", CHAT, body, entries(name, MOST.parts), name)
    fields = f"must have at most {MOST.fields} fields"
    yield Body("unknown fields", COMPLETIONS, filled('{"prompt":"a",', '"%":0', "}"), f"the body {fields}")
    body = filled('{"messages":[{', '"%":0', "}]}")
    yield Body("unknown fields of a message", CHAT, body, f"messages[0] {fields}", "messages[0]")
    body = filled('{"prompt":[1,', "1.5", "]}")
    yield Body(
        "token ids that are fractions", COMPLETIONS, body, "prompt[1] must be a whole number, got 1.5", "prompt[1]"
    )
    yield Body("token ids", COMPLETIONS, filled('{"prompt":[', "5", "]}"), "prompt has", "prompt")
    yield Body(
        "ids to detokenize", "/detokenize", filled('{"tokens":[', "5", "]}"), entries("tokens", MOST.tokens), "tokens"
    )


def too_long() -> Iterator[Body]:
    """Texts without an end."""
    for kind, most in {"regex": MOST.regex_length, "grammar": MAX_FORM_CHARS}.items():
        body = filled(f'{{"prompt":"a","structured_outputs":{{"{kind}":"', "(a|b)*", '"}}', "")
        name = f"structured_outputs.{kind}"
        yield Body(kind, COMPLETIONS, body, f"{name} must have at most {most} characters", name)
    body = filled('{"prompt":"a","structured_outputs":{"json":"[', "1", ']"}}')
    name = "structured_outputs.json"
    yield Body("schema as text", COMPLETIONS, body, f"{name} must have at most {MOST.json} characters, got", name)
    form = '{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{'
    body = filled(f'{{"prompt":"a","response_format":{form}', '"%":{}', "}}}}}")
    name = "response_format.json_schema.schema"
    yield Body("schema", COMPLETIONS, body, f"{name} must have at most {MOST.json} characters of JSON", name)
    texts = {"stop": MOST.stop_length, "request_id": MOST.name_length}
    for name, most in texts.items():
        body = filled(f'{{"prompt":"a","{name}":"', "x", '"}', "")
        yield Body(f"a long {name}", COMPLETIONS, body, f"{name} must have at most {most} characters", name)
    body = filled('{"prompt":"a","bad_words":["', "x", '"]}', "")
    says = f"bad_words[0] must have at most {MOST.bad_word_length} characters"
    yield Body("a long bad word", COMPLETIONS, body, says, "bad_words[0]")
    body = filled('{"prompt":"a","structured_outputs":{"choice":["', "x", '"]}}', "")
    name = "structured_outputs.choice[0]"
    yield Body("a long choice", COMPLETIONS, body, f"{name} must have at most {MOST.choice_length} characters", name)
    choice = [f"{number:04}" + "x" * (MOST.choice_length - 4) for number in range(MOST.choice)]
    body = with_prompt(structured_outputs={"choice": choice})
    name = "structured_outputs.choice"
    says = f"{name} must have at most {MAX_FORM_CHARS} characters as text"
    yield Body("many long choices", COMPLETIONS, body, says, name)
    messages = '"messages":[{"role":"user","content":"a"}]'
    body = filled(f'{{{messages},"chat_template":"', "{{ x }}", '"}', "")
    yield Body("chat template", CHAT, body, "chat_template must be null: it is a program", "chat_template")
    body = filled(f'{{{messages},"chat_template_kwargs":{{', '"%":[]', "}}")
    says = f"chat_template_kwargs must have at most {MOST.json} characters of JSON, got more"
    yield Body("arguments of the template", CHAT, body, says, "chat_template_kwargs")
    body = filled('{"messages":[{"content":"a","role":"', "x", '"}]}', "")
    yield Body("a long role", CHAT, body, "messages must have at most", "messages")
    for what, text in (("letters", "hello "), ("ideographs", "机器")):
        says = "prompt must have at most"
        yield Body(f"a prompt of {what}", COMPLETIONS, filled('{"prompt":"', text, '"}', ""), says, "prompt")
        yield Body(f"{what} to tokenize", TOKENIZE, filled('{"prompt":"', text, '"}', ""), says, "prompt")
    body = filled('{"prompt":[', '"' + "机器" * 7000 + '"', "]}")
    yield Body("prompts that just do not fit", COMPLETIONS, body, "prompt has", "prompt")
    body = filled('{"messages":[{"role":"user","content":"', "hello ", '"}]}', "")
    yield Body("a long message", CHAT, body, "messages must have at most", "messages")


def too_deep() -> Iterator[Body]:
    """And texts that are none."""
    says = "the body must be JSON, nested at most 200 deep"
    yield Body("a body of brackets", COMPLETIONS, filled("", "[", "", ""), says)
    yield Body("brackets in a body", COMPLETIONS, filled('{"prompt":', "[", "", ""), says)
    body = f'{{"messages":[{{"role":"user","content":"a"}}],"chat_template_kwargs":{deep(900, "[", "", "]")}}}'
    yield Body("deep arguments of the template", CHAT, body.encode(), says)
    schema = deep(20_000, '{"properties":{"a":', "{}", "}}")
    body = f'{{"prompt":"a","structured_outputs":{{"json":{schema}}}}}'
    yield Body("a deep schema", COMPLETIONS, body.encode(), says)
    name = "structured_outputs.json"
    body = with_prompt(structured_outputs={"json": "[" * 30_000})
    yield Body("a deep schema as text", COMPLETIONS, body, f"{name} must be JSON, nested at most 200 deep", name)
    yield Body("a surrogate", CHAT, b'{"messages":[{"role":"\\ud800","content":"a"}]}', says)


def at_the_ceilings() -> Iterator[Body]:
    """All that is allowed."""
    words = [f"{number:03}" + "x" * (MOST.bad_word_length - 3) for number in range(MOST.bad_words)]
    stops = [f"{number:03}" + "x" * (MOST.stop_length - 3) for number in range(MOST.stop)]
    ids = list(range(MOST.allowed_token_ids))
    bias = {str(token_id): 1 for token_id in range(MOST.logit_bias)}
    lists = {"stop": stops, "stop_token_ids": ids[: MOST.stop_token_ids], "allowed_token_ids": ids, "logit_bias": bias}
    yield Body("every list, full", COMPLETIONS, with_prompt(bad_words=words, **lists))
    yield Body("prompts, full", COMPLETIONS, with_prompt(prompt=[[5]] * MOST.prompts))
    yield Body("prompts and lists, full", COMPLETIONS, with_prompt(prompt=[[5]] * MOST.prompts, **lists))
    choice = [f"{number:04}" + "x" * (MAX_FORM_CHARS // MOST.choice - 8) for number in range(MOST.choice)]
    yield Body("choice, full", COMPLETIONS, with_prompt(structured_outputs={"choice": choice}))
    regex = "(" + "|".join(["a?" * 20] * (MOST.regex_length // 42)) + ")*"
    yield Body("regex, full", COMPLETIONS, with_prompt(structured_outputs={"regex": regex}))
    schema = {"properties": {f"a{number}": {"type": "string"} for number in range(1024)}}
    yield Body("schema, full", COMPLETIONS, with_prompt(structured_outputs={"json": schema}))
    yield Body("ids to detokenize, full", "/detokenize", json.dumps({"tokens": [5] * MOST.tokens}).encode())
    parts = [{"type": "text", "text": ""}] * MOST.parts
    body = json.dumps({"messages": [{"role": "user", "content": parts}] * 30, "max_tokens": 1}).encode()
    yield Body("parts, full", CHAT, body, "messages must have at most", "messages")


def slow_forms() -> Iterator[Body]:
    """Of some bytes."""
    regex = {"structured_outputs": {"regex": r"(\w+\s?){300}x"}, "max_tokens": 40, "temperature": 1.5, "seed": 0}
    yield Body("a slow regex", COMPLETIONS, with_prompt(**regex))
    yield Body("a slow regex, 16 times", COMPLETIONS, with_prompt(**regex, n=16))
    body = with_prompt(structured_outputs={"regex": "(a{1000}){1000}"}, max_tokens=9)
    yield Body(
        "a regex without fuel", COMPLETIONS, body, "structured_outputs must be within bounds", "structured_outputs"
    )


ORDINARY = Body("an ordinary one", COMPLETIONS, with_prompt())
BODIES = [ORDINARY, *too_many(), *too_long(), *too_deep(), *at_the_ceilings(), *slow_forms()]


@dataclass
class Served:
    """A server in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def send(self, body: Body) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return httpx.post(self.url + body.path, content=body.content, headers=headers, timeout=600)

    def another_client(self) -> float:
        """Seconds that an ordinary answer takes."""
        ask = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        start = time.perf_counter()
        httpx.post(self.url + COMPLETIONS, json=ask, timeout=600).raise_for_status()
        return time.perf_counter() - start

    def megabytes(self) -> float:
        found = subprocess.run(["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, check=True)
        return int(found.stdout) / 1000


@contextmanager
def served(*options: str) -> Iterator[Served]:
    with program(*options) as (url, process):
        threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        yield Served(url, process)


@dataclass
class Cost:
    status: int
    seconds: float
    health: float
    usual: float
    another: float
    kept: float


def cost(server: Served, body: Body) -> Cost:
    """What it costs the others while it is handled."""
    before, done, waits = server.megabytes(), threading.Event(), list[float]()

    def watch() -> None:
        with httpx.Client() as client:
            while not done.is_set():
                start = time.perf_counter()
                client.get(f"{server.url}/health", timeout=600)
                waits.append(time.perf_counter() - start)
                done.wait(0.005)

    others: list[float] = []
    watcher = threading.Thread(target=watch)
    other = threading.Thread(target=lambda: others.append(server.another_client()))
    watcher.start()  # which costs something itself, and does so while the usual time is taken, too
    usual = statistics.median(server.another_client() for _ in range(3))
    waits.clear()
    other.start()
    start = time.perf_counter()
    answer = server.send(body)
    seconds = time.perf_counter() - start
    other.join()
    done.set()
    watcher.join()
    return Cost(answer.status_code, seconds, max(waits), usual, others[0], server.megabytes() / before)


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    chosen = [body for body in BODIES if not sys.argv[1:] or any(name in body.name for name in sys.argv[1:])]
    table = Table("body", "bytes", "status", "answered after", "/health at most", "another answer", "memory after")
    with served() as server:
        server.another_client()
        for body in chosen:
            found = cost(server, body)
            table.add_row(
                body.name, f"{len(body.content):,}", str(found.status), f"{found.seconds * 1e3:.0f} ms",
                f"{found.health * 1e3:.0f} ms", f"{found.another / found.usual:.2f} × {found.usual * 1e3:.0f} ms",
                f"{found.kept:.2f} ×",
            )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
