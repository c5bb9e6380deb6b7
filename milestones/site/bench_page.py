"""The part of the benchmarks page that is about machines, written from the measurements in the repository.

    docs/benchmarks/machines.toml  ─┐     docs/en/benchmarks.md, docs/zh/benchmarks.md   between two marks
    docs/benchmarks/data/*.json    ─┴──▶  docs/figures/bench-*.svg                        a drawing for each machine

    python -m milestones.site.bench_page            # write them
    python -m milestones.site.bench_page --check    # fail where they are others; a test does so too

The tables themselves are marks, which `make pages` fills from the same JSON.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from milestones.site.bench_table import load
from milestones.site.directives import END
from milestones.site.figures import file_in
from milestones.site.pages import filled
from milestones.site.peers_chart import ablation_lines, draw, peer_lines

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "<!-- Written by python -m milestones.site.bench_page. What stands between here and the next mark is lost. -->"
LAST = "<!-- End of what python -m milestones.site.bench_page writes. -->"
WORDS = {
    "en": {
        "columns": "engine,dtype,requests,seconds,prefill_tokens_per_s,decode_tokens_per_s,output_tokens_per_s,"
        "speedup:.2f",
        "not_shown": "What this does not show: ",
        "machine": "Machine: ",
        "cores": " cores",
        "none": "No measurement of such a machine is in the repository. This command makes one:",
        "sep": ", ",
    },
    "zh": {
        "columns": "engine=引擎,dtype,requests=请求数,seconds=秒,prefill_tokens_per_s=预填充 token/s,"
        "decode_tokens_per_s=解码 token/s,output_tokens_per_s=输出 token/s,speedup:.2f",
        "not_shown": "这些表没有说的：",
        "machine": "机器：",
        "cores": " 核",
        "none": "仓库里还没有这种机器的测量。这条命令会量一份：",
        "sep": "，",
    },
}
COMMAND = (
    "python -m workshop.bench throughput --dtype bfloat16 --num-requests 8 --input-len 128 --output-len 32 --rounds 6 "
    "--peer hf-continuous,vllm,llama-cpp --json docs/benchmarks/data/throughput-peers-{id}-bf16.json"
)
ABLATION = "ablate-embedded-zen4"


def machines() -> list[dict[str, Any]]:
    """The entries of machines.toml.

    Raises:
        ValueError: a stored throughput against peers is in none of them, or in two.
    """
    found = tomllib.loads((ROOT / "docs/benchmarks/machines.toml").read_text(encoding="utf-8"))["machine"]
    named = [name for machine in found for name in machine["data"]]
    stored = sorted(path.stem for path in (ROOT / "docs/benchmarks/data").glob("throughput-peers-*.json"))
    if sorted(named) != stored:
        wrong = sorted(set(named) ^ set(stored)) or sorted({name for name in named if named.count(name) > 1})
        raise ValueError(f"machines.toml must name each throughput-peers-*.json once, look at {', '.join(wrong)}")
    return list(found)


def files() -> dict[Path, str]:
    """Each file that this writes, and what belongs into it."""
    out = {ROOT / f"docs/{lang}/benchmarks.md": _page(lang) for lang in WORDS}
    for machine in machines():
        if machine["data"]:
            svg = draw(
                f"Our rate over the peer's: {machine['en']['name']}",
                f"我们的速度除以对方的：{machine['zh']['name']}",
                peer_lines([load(name) for name in machine["data"]]),
                [("decode", "解码"), ("prefill", "预填充")],
                ("right of 1: ours is faster", "1 的右边：我们更快"),
            )
            out[ROOT / f"docs/figures/bench-peers-{machine['id']}.svg"] = svg
    out[ROOT / "docs/figures/bench-ablate.svg"] = draw(
        "Time without one feature, over the time with all",
        "去掉一样以后的时间，除以全部都在时的时间",
        ablation_lines(load(ABLATION)),
        [("whole rounds", "整轮的时间")],
        ("right of 1: it is worth having", "1 的右边：值得有"),
    )
    return out


def _page(lang: str) -> str:
    text = (ROOT / f"docs/{lang}/benchmarks.md").read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(LAST)
    if not found or not ended:
        raise ValueError(f"docs/{lang}/benchmarks.md must have the lines {BEGIN!r} and {LAST!r}")
    body = "\n\n".join(_section(machine, lang) for machine in machines())
    return filled(f"docs/{lang}/benchmarks.md", f"{before}{BEGIN}\n\n{body}\n\n{LAST}{after}").text


def _section(machine: dict[str, Any], lang: str) -> str:
    words, said = WORDS[lang], machine[lang]
    parts = [f'<a id="peers-{machine["id"]}"></a>\n### {said["name"]}', said["text"]]
    if machine["data"]:
        parts.append(f"![](../{file_in(lang, 'bench-peers-' + machine['id']).removeprefix('docs/')})")
        parts.append(f"{words['machine']}{_machine(load(machine['data'][0]), words)}")
        for name in machine["data"]:
            parts.append(f'<!-- bench {name} columns="{words["columns"]}" nocaption -->\n{END}')
    else:
        parts += [words["none"], f"`{COMMAND.format(id=machine['id'])}`"]
    parts.append(f"{words['not_shown']}{said['not_shown']}")
    return "\n\n".join(parts)


def _machine(report: dict[str, Any], words: dict[str, str]) -> str:
    hardware, versions = report["hardware"], report["versions"]
    facts = [
        hardware["cpu"],
        f"{hardware['cores']}{words['cores']}",
        hardware["units"],
        *(f"{k} {v}" for k, v in versions.items()),
    ]
    return words["sep"].join([*facts, report["date"]])


def main(arguments: list[str]) -> int:
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the measurements make: python -m milestones.site.bench_page")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
