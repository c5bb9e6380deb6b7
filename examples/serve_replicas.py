"""Ask `folovllm serve --replicas 2` with prompts that begin alike, and see which replica found what in its cache.

folovllm serve --replicas 2 &
python examples/serve_replicas.py
"""

import json
import re
import sys
from urllib.request import Request, urlopen

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
RULES = {
    "a cook": "You are a cook. Answer in one line. Name what is needed first, then what to do, and no more than that. "
    * 4,
    "a guide": "You are a guide. Answer in one line. Name the street first, then the house, and say no more than that. "
    * 4,
}


def ask(path: str, body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(URL + path, data, {"Content-Type": "application/json"})) as answer:
        return str(answer.read().decode())


def found() -> dict[str, tuple[int, int]]:
    """Replica -> prompt tokens that came, and those that were in its cache. A single engine has no name."""
    counts: dict[str, list[int]] = {}
    for name in ("queries", "hits"):
        for labels, value in re.findall(rf":prefix_cache_{name}_total{{(.*)}} (\S+)", ask("/metrics")):
            replica = re.search(r'replica="(.*?)"', labels)
            counts.setdefault(replica.group(1) if replica else "the engine", []).append(int(float(value)))
    return {replica: (queries, hits) for replica, (queries, hits) in counts.items()}


for rule, text in RULES.items():
    for question in ("Soup?", "Bread?", "Tea?"):
        body = {"prompt": f"{text} {question}", "max_tokens": 4, "temperature": 0}
        usage = json.loads(ask("/v1/completions", body))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"{rule:8} {question:7} {cached:3} of {usage['prompt_tokens']} prompt tokens from the cache")
for replica, (queries, hits) in found().items():
    print(f"{replica}: {hits} of {queries} prompt tokens found")
