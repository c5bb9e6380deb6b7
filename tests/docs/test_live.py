"""What the live pages run: without torch, each milestone's own scheduler does what its engine did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from folovllm.entrypoints.cli.main import main
from milestones.site import live
from milestones.site.figures import figure
from milestones.site.live import box
from milestones.site.render import live_box
from milestones.site.source import excerpt, parse
from tests.browser.live_support import Driver
from workshop.running_example import stored


def waits(answer: dict[str, Any]) -> list[dict[str, str]]:
    return [more["waits"] for more in answer["found"]["trace"]["more"]]


def work(answer: dict[str, Any], step: int) -> dict[str, tuple[int, int]]:
    """name -> (first position, tokens) in a step, counted from 1."""
    return {part["r"]: (part["start"], part["n"]) for part in answer["found"]["trace"]["steps"][step - 1]}


def changed(name: str, where: str, old: str, new: str) -> dict[str, Any]:
    """A box's first settings with a piece of its code rewritten."""
    path, qualname = where.split()
    text = excerpt(parse(path, name[:2]), qualname)
    assert old in text
    return {**box.spec(name), "code": {where: text.replace(old, new)}}


@pytest.mark.parametrize("milestone", ["m2", "m3", "m5", "m6"])
def test_a_milestones_own_scheduler_takes_the_steps_that_its_engine_took(milestone: str, tmp_path: Path) -> None:
    (answer,) = Driver(tmp_path, milestone)(box.spec(f"{milestone}/running"))
    trace, engine = answer["found"]["trace"], stored()[milestone]
    assert (trace["arrived"], trace["steps"]) == (engine["arrived"], engine["steps"])
    assert 'viewBox="0 0 860' in answer["found"]["svg"]


def test_it_says_who_waits_for_what(tmp_path: Path) -> None:
    (answer,) = Driver(tmp_path / "m2", "m2")(box.spec("m2/budgets"))
    behind = dict.fromkeys("CDE", "behind B")
    assert waits(answer) == [{"B": "budget", **behind}, *[{"E": "seqs"}] * 3, {}, {}]
    (answer,) = Driver(tmp_path / "m3", "m3")(box.spec("m3/preemption"))
    assert waits(answer)[2:7] == [{"C": "gave way"}, *[{"C": "blocks"}] * 3, {}]
    assert work(answer, 7) == {"C": (0, 7)}
    late = {**box.spec("m5/chunks"), "requests": [["A", 18, 4, 0, 0], ["C", 5, 4, 0, 0]]}
    (answer,) = Driver(tmp_path / "m5", "m5")(late)
    assert waits(answer)[0] == {"C": "budget"}  # half of 8 is left for it, and then A has that, too


def test_in_m3_a_request_that_gives_way_may_keep_its_blocks_elsewhere(tmp_path: Path) -> None:
    """C's 7 tokens are moved, not computed again: it comes back with one."""
    (answer,) = Driver(tmp_path, "m3")({**box.spec("m3/preemption"), "swap": True})
    assert waits(answer)[2:7] == [{"C": "swapped"}] * 4 + [{}]
    assert work(answer, 7) == {"C": (6, 1)}


def test_what_a_reader_writes_is_run_and_then_forgotten(tmp_path: Path) -> None:
    spec = changed("m5/chunks", "folovllm/core/prompt_shares.py half", "-(-num_tokens // 2)", "num_tokens")
    first, rewritten, again = Driver(tmp_path, "m5")(box.spec("m5/chunks"), spec, box.spec("m5/chunks"))
    assert work(first, 1) == {"A": (0, 4), "C": (0, 4)}  # half of the budget each
    assert [work(rewritten, step) for step in (1, 3)] == [{"A": (0, 8)}, {"A": (16, 2), "C": (0, 4)}]
    assert again == first


def test_a_reader_s_policy_decides_who_comes_first(tmp_path: Path) -> None:
    key = "folovllm/core/scheduler.py Scheduler._key"
    spec = changed("m2/budgets", key, "request.priority if self.by_priority else 0", "len(request.prompt_token_ids)")
    (answer,) = Driver(tmp_path, "m2")(spec)
    assert work(answer, 1) == {"E": (0, 1), "C": (0, 2), "D": (0, 3), "B": (0, 6)}  # 12 tokens in four slots
    assert waits(answer)[:3] == [{"A": "seqs"}, {"A": "seqs"}, {}]


def test_a_mistake_in_it_is_told_with_its_line(tmp_path: Path) -> None:
    where = "folovllm/core/block_pool.py BlockPool._put_back"
    unknown = changed("m6/eviction", where, "to_front = self", "to_front = oops")
    unread = changed("m6/eviction", where, "to_front = self", "to_front = = self")
    renamed = changed("m6/eviction", where, "def _put_back", "def _put_bak")
    free = "folovllm/core/kv_cache_manager.py KVCacheManager.free"
    broken = changed("m6/eviction", free, "reversed(seq.block_ids)", "seq.block_ids")
    too_long = {**box.spec("m6/eviction"), "blocks": 3}
    answers = Driver(tmp_path, "m6")(unknown, unread, renamed, broken, too_long)
    assert [(answer["error"], answer["lines"]) for answer in answers] == [
        ("NameError: name 'oops' is not defined", [4]),
        ("SyntaxError: invalid syntax (<your code>, line 4)", [4]),
        ("the code must define _put_back, got _put_bak", []),
        ("RuntimeError: block 2 would be evicted after its parent 1", []),
        ("the prompt of A has 13 tokens, but max_model_len is 12 here", []),
    ]


def test_the_five_requests_of_the_page_on_eviction(tmp_path: Path) -> None:
    specs = [{**box.spec("m6/eviction"), "blocks": blocks} for blocks in (8, 7, 6)]
    answers = Driver(tmp_path, "m6")(*specs)
    assert [part["blocks"] for part in answers[0]["found"]["trace"]["steps"][3]] == [[8, 4, 3]]
    assert [work(answer, 5)["E"][0] for answer in answers] == [8, 4, 0]  # tokens of the system prompt that E finds


def test_the_simulator_of_the_page_is_that_of_the_command(tmp_path: Path) -> None:
    spec = {"device": "h200", "model": "llama-3.1-8b", "load": "chat", "rate": 40, "count": 40, "seqs": 8}
    (answer,) = Driver(tmp_path, "root")({**spec, "budget": 512, "chunks": True, "caching": True})
    out, command = tmp_path / "out.json", "bench simulate --device h200 --request-rate 40 --num-requests 40"
    engine = ["--max-num-seqs", "8", "--max-num-batched-tokens", "512"]
    assert main([*command.split(), *engine, "--json", str(out)]) == 0
    (row,), found = json.loads(out.read_text())["rows"], answer["found"]
    assert {name: found["row"][name] for name in found["row"].keys() & row.keys()} == {
        name: row[name] for name in found["row"].keys() & row.keys()
    }
    assert (len(found["ttft"]), found["ttft"][100]) == (101, pytest.approx(row["ttft_p99_ms"] / 1e3, rel=0.1))


def test_where_npms_package_cannot_be_had_the_pages_show_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the build says so in a line."""
    script = tmp_path / "python.js"
    script.write_text("of an earlier build")
    monkeypatch.setattr(live, "SCRIPT", script)
    monkeypatch.setattr(box, "SCRIPT", script)
    assert all('class="live"' in live_box(name, "en") for name in box.BOXES)
    monkeypatch.setattr(live, "CACHE", tmp_path / "none.tgz")
    monkeypatch.setattr(live.shutil, "which", lambda name: None)
    said = live.build()
    assert said == "live pages: npm's pyodide 314.0.7 cannot be had here, so they show pictures and no scheduler"
    assert not script.exists()
    assert live_box("m3/running", "en") == figure("docs/figures/m3/running.svg")
    assert live_box("m3/preemption", "en") == f"*{box.MISSING['en']}*"


def test_a_code_host_shows_its_picture_and_says_where_it_runs() -> None:
    picture, none = (box.picture(name, "docs/zh/m3/index.md") for name in ("m3/running", "m3/preemption"))
    image, said = picture.split("\n\n")
    assert image.endswith("](../../figures/m3/running.zh.svg)")
    assert said == none == f"*{box.MISSING['zh']}*"
