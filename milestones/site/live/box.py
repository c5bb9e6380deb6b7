"""`live m3/running`: a box on the site in which a milestone's scheduler runs, at first its picture and a button.

What it starts with is here, one entry for each box; whatever a reader changes is in docs/theme/…/live.js.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from milestones.site import comments, figures, way
from milestones.site.errors import DirectiveError
from milestones.site.live import SCRIPT
from milestones.site.source import excerpt, parse

Requests = tuple[tuple[str, int, int, int, int], ...]
"""Of each its name, prompt, output, the steps that are over when it comes, and the tokens that it shares."""
RUNNING: Requests = (("A", 5, 6, 0, 0), ("B", 20, 4, 1, 17), ("C", 19, 4, 4, 17))
SCHEDULER, SHARES = "folovllm/core/scheduler.py Scheduler.", "folovllm/core/prompt_shares.py "
MANAGER = "folovllm/core/kv_cache_manager.py KVCacheManager."
LINES = "folovllm/core/request_queue.py RequestLines."
PREEMPTION, POOL = "folovllm/core/preemption.py ", "folovllm/core/block_pool.py BlockPool."
MISSING = {
    "en": "On the published site, a box here runs these steps.",
    "zh": "在发布的网站上，这里有一个框，可以运行这些步骤。",
}


@dataclass(frozen=True)
class Box:
    """`code`: what the reader may rewrite. `figure`: what is shown before, if the page has no picture of its own."""

    budget: int
    seqs: int
    requests: Requests
    code: tuple[str, ...]
    blocks: int = 16
    longest: int = 32  # max_model_len
    figure: str | None = None


BOXES = {
    "m2/running": Box(
        32, 2, RUNNING, (SCHEDULER + "schedule", SCHEDULER + "_admit", SCHEDULER + "_key"), figure="m2/running"
    ),
    "m2/budgets": Box(
        12, 4, (("A", 7, 4, 0, 0), ("B", 6, 4, 0, 0), ("C", 2, 4, 0, 0), ("D", 3, 4, 0, 0), ("E", 1, 2, 0, 0)),
        (SCHEDULER + "_key", SCHEDULER + "schedule", SCHEDULER + "_admit"), longest=12,
    ),
    "m3/running": Box(
        32, 4, RUNNING, (SCHEDULER + "schedule", PREEMPTION + "choose_victims", LINES + "add"), figure="m3/running"
    ),
    "m3/preemption": Box(
        32, 4, (("A", 7, 6, 0, 0), ("B", 6, 6, 0, 0), ("C", 5, 6, 0, 0)),
        (SCHEDULER + "_continue", PREEMPTION + "choose_victims", SCHEDULER + "_let_in"), blocks=6,
    ),
    "m5/running": Box(8, 4, RUNNING, (SCHEDULER + "schedule", SHARES + "share_out"), figure="m5/running"),
    "m5/chunks": Box(
        8, 4, (("A", 18, 4, 0, 0), ("C", 4, 4, 0, 0)),
        (SHARES + "half", SHARES + "share_out", SHARES + "top_up", SCHEDULER + "_chunk"), blocks=24,
    ),
    "m6/running": Box(8, 4, RUNNING, (POOL + "_choose", POOL + "_put_back"), figure="m6/running"),
    "m6/eviction": Box(
        32, 4,
        (("A", 13, 2, 0, 13), ("B", 11, 1, 1, 8), ("C", 15, 1, 2, 0), ("D", 11, 1, 3, 0), ("E", 13, 1, 4, 13)),
        (MANAGER + "free", POOL + "_put_back", POOL + "_choose"), blocks=8,
    ),
    "simulator": Box(0, 256, (), (), figure="simulate-budget"),
}  # fmt: skip


def find(name: str) -> Box:
    if name not in BOXES:
        raise DirectiveError(f"no live box {name!r} (there are: {', '.join(BOXES)})")
    return BOXES[name]


def spec(name: str) -> dict[str, object]:
    """What the driver gets at first."""
    box = find(name)
    shown = {"milestone": name.partition("/")[0], "budget": box.budget, "seqs": box.seqs, "blocks": box.blocks}
    return {**shown, "longest": box.longest, "chunks": True, "caching": True, "swap": False, "requests": box.requests}


def picture(name: str, page: str) -> str:
    """What stands in the page: the box's picture, and what the site has besides."""
    lang = page.split("/")[1]
    if (found := find(name).figure) is None:
        return f"*{MISSING[lang]}*"
    file = figures.file_in(lang, found)
    return f"![{figures.title(file)}]({posixpath.relpath(file, posixpath.dirname(page))})\n\n*{MISSING[lang]}*"


def render(name: str, lang: str, chinese: Mapping[str, str], asked: Mapping[tuple[str, str], int]) -> str:
    """The HTML of one box, a single line. asked: what the milestone's exercises ask for, as way.solutions() has it."""
    box = find(name)
    picture = figures.figure(figures.file_in(lang, box.figure)) if box.figure else ""
    if not SCRIPT.is_file():
        return picture or f"*{MISSING[lang]}*"
    pieces = []
    for where in box.code:
        path, qualname = where.split()
        text = excerpt(parse(path, name.partition("/")[0]), qualname)
        shown = comments.laid_over(text, chinese, is_doc=False) if lang == "zh" else text
        pieces.append({"where": where, "text": shown, "answer": way.folded(path, [qualname], lang, dict(asked))})
    data = {"load": True} if name == "simulator" else {"spec": spec(name), "code": pieces}
    return f'<div class="live" data-live="{escape(json.dumps(data, ensure_ascii=False))}">{picture}</div>'
