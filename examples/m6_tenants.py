"""Two tenants of one engine. Whoever finds his guess computed already knows that somebody asked it; a salt hides that.

Run it: python examples/m6_tenants.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
from rich.console import Console
from rich.table import Table

from folovllm import LLM, SamplingParams

SECRET = "Once upon a time there was a little fox who hid a golden key under the old stone bridge by the river."
PARAMS = SamplingParams(temperature=0, max_tokens=8)

# In float32: in bfloat16, what is computed in other pieces may be rounded otherwise.
llm = LLM(dtype="float32", max_model_len=256, num_kv_blocks=64)
table = Table(title="the same prompt, asked one after the other")
for column in ("who", "cache_salt", "prompt tokens", "cached", "blocks that can be found"):
    table.add_column(column, justify="left" if column in ("who", "cache_salt") else "right")


def ask(who: str, salt: str | None) -> list[int]:
    prompt = {"prompt": SECRET} if salt is None else {"prompt": SECRET, "cache_salt": salt}
    output = llm.generate(prompt, PARAMS, use_tqdm=False)[0]
    found = str(llm.engine.stats().kv_blocks_cached)
    table.add_row(who, str(salt), str(len(output.prompt_token_ids)), str(output.num_cached_tokens), found)
    return output.outputs[0].token_ids


answers = [
    ask("Alice", None),
    ask("Eve guesses", None),
    ask("Alice", "tenant-alice"),
    ask("Alice again", "tenant-alice"),
    ask("Eve guesses", "tenant-eve"),
]
Console().print(table)
print(f"all got the same answer: {all(answer == answers[0] for answer in answers)}")
