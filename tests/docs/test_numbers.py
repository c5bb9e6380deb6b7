"""A number that a page has from the code is the code's: limits, defaults, sizes, counts.

A row of the table is a page, a piece of it in each language with `#` where a number stands, and what the code says.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

import pytest

from folovllm.attention import splits
from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.engine.builder.budgets import DEFAULT_CHUNKED_TOKENS
from folovllm.engine.pacing import LONGEST_REST
from folovllm.sample.filters import NARROW_WIDTH
from folovllm.sampling_params import SamplingParams
from folovllm.serving import routing
from milestones.chain import Course
from milestones.path import measure
from milestones.site.source import ROOT, find, parse
from milestones.sources import working_tree
from workshop.bench.presets import PRESETS


def at(milestone: str, path: str, name: str) -> Any:
    """A constant as an earlier milestone has it."""
    value = find(parse(path, milestone), name).value  # type: ignore[attr-defined]
    return ast.literal_eval(value)


def default(of: Any, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(of) if field.name == name)


FAST, FULL = DEFAULT_CHUNKED_TOKENS["interactivity"], DEFAULT_CHUNKED_TOKENS["throughput"]
AT_M5 = at("m5", "folovllm/engine/builder/budgets.py", "DEFAULT_CHUNKED_TOKENS")
SPLITS = splits.choose_splits(1, 8, 32_768, 64)
PROGRAMS, KB = 8 * SPLITS, -(-32_768 // (64 * SPLITS)) * 64 * 512 // 1000
SEQS, BLOCK = default(SchedulerConfig, "max_num_seqs"), default(CacheConfig, "block_size")
MAX_TOKENS = default(SamplingParams, "max_tokens")
RUNNER, SCHEDULER = "folovllm/worker/model_runner.py", "folovllm/core/scheduler.py"
PAGED_TORCH = "folovllm/attention/backends/paged_torch.py"
ROWS_OF_TASK = int(re.findall(r"ROWS_OF_TASK = (\d+)", (ROOT / "folovllm/csrc/prefill.cpp").read_text())[0])


def preset(name: str, *fields: str) -> tuple[int, ...]:
    return tuple(getattr(PRESETS[name], field) for field in fields)


NANO = preset("nano-vllm", "num_requests", "shortest", "longest_prompt")
SHARED = preset("shared-prefix", "num_requests", "num_prefixes", "prefix_len")
CHATS = (preset("chat", "num_requests")[0] // preset("chat", "num_turns")[0], *preset("chat", "num_turns"))
LONG = preset("long-prompt-burst", "num_long", "long_prompt")
BURST = (preset("long-prompt-burst", "num_requests")[0] - LONG[0], *LONG)

SAID: list[tuple[str, str, str, tuple[int, ...]]] = [
    (
        "getting-started.md",
        "`LLM`: # on a CPU, # on a GPU; `AsyncLLM`: # and #",
        "`LLM`：CPU 上 #，GPU 上 #；`AsyncLLM`：# 和 #",
        (*FULL.values(), *FAST.values()),
    ),
    ("getting-started.md", "| sequences in a step | # |", "| 一步里的序列数 | # |", (SEQS,)),
    ("getting-started.md", "| blocks of #,", "| 每块 # 个，", (BLOCK,)),
    ("getting-started.md", "preempted sequences | # |", "以 GiB 计 | # |", (int(default(CacheConfig, "swap_space")),)),
    ("m5/budget.md", "| # on a CPU, # on a GPU |", "| CPU #，GPU # |", (AT_M5["cpu"], AT_M5["cuda"])),
    (
        "m5/budget.md",
        "takes # and # for `LLM`, # and # for a server",
        "`LLM` 取 # 和 #，服务器取 # 和 # |",
        (*FULL.values(), *FAST.values()),
    ),
    ("m5/budget.md", "default of # on a GPU", "GPU 上默认的 # ", (AT_M5["cuda"],)),
    ("m5/budget.md", "_prefills` | # |", "_prefills` | # |", (default(SchedulerConfig, "max_num_partial_prefills"),)),
    ("m4/paged-decode.md", "# splits make # programs, whose", "切成 # 份有 # 个程序，结果", (SPLITS, PROGRAMS)),
    (
        "m4/paged-decode.md",
        "the # programs that the GPU holds at once (three on each of #)",
        "同时装得下的 # 个程序（# 个多处理器，各三个）",
        (splits.PLACES, splits.SMS),
    ),
    ("m4/split-k.svg", "in # splits: # programs<", "切成 # 份：# 个程序<", (SPLITS, PROGRAMS)),
    ("m4/split-k.svg", "># splits<", "># 份<", (SPLITS,)),
    ("m4/split-k.svg", "># programs, at most # KB each", "># 个程序，每个至多 # KB", (PROGRAMS, KB)),
    ("m4/time-line.md", "programs, and # run at once", "个程序，同时跑 # 个", (splits.PLACES,)),
    ("replicas.md", "The margin is #, so", "余量（margin）是 #，", (routing.MARGIN,)),
    ("replicas.md", "first four blocks, # tokens", "前四块、也就是前 # 个 token", (routing.DEPTH * BLOCK,)),
    ("service.md", "ends after # ms at the latest", "每次最多歇 # ms", (round(LONGEST_REST * 1000),)),
    ("m1/sampler.md", "where # is the limit", "上限 # 时", (default(ModelConfig, "max_logprobs"),)),
    ("m1/sampler-cost.md", "| `top_p` | # candidates", "| `top_p` | # 个候选", (NARROW_WIDTH,)),
    ("m1/logits.md", "passes # rows at a time", "每次交 # 行", (at("m1", RUNNER, "PROMPT_LOGPROBS_ROWS"),)),
    ("m3/appendix.md", "# queries at a time", "一次 # 个查询", (at("m3", PAGED_TORCH, "MASKED_QUERIES"),)),
    ("m3/appendix.md", "leaves #% of the blocks", "留下 #% 的块", (round(100 * at("m3", SCHEDULER, "WATERMARK")),)),
    ("m3/questions.md", "blocks free (#%)", "空闲块（#%）", (round(100 * at("m3", SCHEDULER, "WATERMARK")),)),
    ("m4/cpu.md", "A task is up to # rows", "一个任务最多 # 行", (ROWS_OF_TASK,)),
    ("m1/questions.md", "`max_tokens` is # by default", "`max_tokens` 默认是 #。", (MAX_TOKENS,)),
    (
        "measure.md",
        "| #, of # to # tokens in and out |",
        "| # 个，输入输出各 # 到 # 个 token |",
        NANO,
    ),
    ("measure.md", "| # below # instructions of # tokens |", "| # 个，共用 # 段 # 个 token 的指令 |", SHARED),
    ("measure.md", "| # conversations of # turns |", "| # 段对话，各 # 轮 |", CHATS),
    (
        "measure.md",
        "| # short ones, and # prompts of # tokens",
        "| # 个短的，中间连着 # 个 # 个 token 的提示词 |",
        BURST,
    ),
]


def numbers(lang: str, page: str, piece: str) -> tuple[int, ...]:
    pattern = re.escape(piece).replace(r"\#", r"([\d,]+)")
    found = re.findall(pattern, (ROOT / "docs" / lang / page).read_text(encoding="utf-8"))
    assert len(found) == 1, f"docs/{lang}/{page}: {piece!r} must be there once"
    return tuple(int(number.replace(",", "")) for number in ([found[0]] if isinstance(found[0], str) else found[0]))


@pytest.mark.always
@pytest.mark.parametrize(("page", "english", "chinese", "values"), SAID)
def test_a_number_of_a_page_is_the_codes(page: str, english: str, chinese: str, values: tuple[int, ...]) -> None:
    assert numbers("en", page, english) == values
    assert numbers("zh", page, chinese) == values


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_of_ways_is_the_commands(lang: str) -> None:
    course = Course.load(working_tree(ROOT))
    walk = measure(course, course.get("m1"))
    way = (walk.files, walk.functions, walk.calls, walk.way_files, walk.way_lines, walk.function_lines, walk.code_lines)
    page = (ROOT / f"docs/{lang}/architecture.md").read_text(encoding="utf-8")
    row = re.search(r"^m1 .*$", page, re.MULTILINE)
    assert row is not None
    found = [int(number.replace(",", "")) for number in re.findall(r"\b[\d,]+\b", row[0].removeprefix("m1"))]
    assert tuple(found[:3] + found[4:8]) == way
