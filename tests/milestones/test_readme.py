"""What the READMEs show has to run, and both have to show the same."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.labs.exercise import load_exercises
from milestones.path import count_lines
from milestones.sources import working_tree

ROOT = Path(__file__).resolve().parents[2]
READMES = ["README.md", "README.zh.md"]


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("name", READMES)
def test_the_ten_lines_of_python_run_and_print_text(name: str) -> None:
    (code,) = blocks(name, "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    printed = re.fullmatch(r"Once upon a time →(.+)从前 →(.+)", done.stdout.strip(), flags=re.DOTALL)
    assert printed, done.stdout
    english, rest = printed.groups()
    assert len(english.split()) > 10
    assert len(rest) > 30


@pytest.mark.parametrize("name", READMES)
def test_the_first_sample_is_what_a_user_of_vllm_writes(name: str) -> None:
    code = blocks(name, "python")[0]
    assert code.startswith("from folovllm import LLM, SamplingParams")
    assert "outputs = llm.generate(prompts, sampling_params)" in code
    assert "output.outputs[0].text" in code
    gone = ("best_of", "use_beam_search", "length_penalty", "early_stopping", "swap_space")
    assert [field for field in gone if field in code] == []


@pytest.mark.always
def test_both_readmes_have_the_same_parts() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in READMES]
    shapes = [[len(level) for level in re.findall(r"^(#+) ", text, flags=re.MULTILINE)] for text in texts]
    assert shapes[0] == shapes[1]
    commands = [[line.partition("#")[0].strip() for line in "".join(blocks(n, "bash")).split("\n")] for n in READMES]
    assert commands[0] == commands[1]
    texts[1] = texts[1].replace("running.zh.svg", "running.svg")  # with Chinese labels
    links = [re.findall(r"\]\(([^)]+)\)", text.replace("docs/zh", "docs/en").replace("/zh/", "/en/")) for text in texts]
    assert sorted(links[0][1:]) == sorted(links[1][1:])


def measured(name: str, column: str, **where: object) -> float:
    rows = json.loads((ROOT / f"docs/benchmarks/data/{name}.json").read_text(encoding="utf-8"))["rows"]
    (value,) = (row[column] for row in rows if where.items() <= row.items())
    return float(value)


def speed(name: str, engine: str = "folovllm") -> float:
    return measured(f"throughput-peers-avx512-{name}", "output_tokens_per_s", engine=engine)


PEERS = {
    "vllm": "vllm-fp32",
    "vllm-compiled": "vllm-compiled-fp32",
    "openvino": "openvino-fp32",
    "llama-cpp": "llama-fp32",
}
OURS = statistics.median(map(speed, PEERS.values()))
EIGHT, FOUR = "openvino-w8a8-8", "openvino-w4a16-8"
FIGURES = [
    f"| {OURS:.1f} | {speed(EIGHT):.1f} | {speed(FOUR):.1f} |",
    *(f"| {speed(PEERS[engine], engine):.1f} | – | – |" for engine in ("vllm", "vllm-compiled", "llama-cpp")),
    " | ".join(f"{speed(name, 'openvino'):.1f}" for name in ("openvino-fp32", EIGHT, FOUR)),
]


@pytest.mark.always
@pytest.mark.parametrize("name", READMES)
def test_the_figures_are_those_of_the_measurements(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [figure for figure in FIGURES if figure not in text] == []


@pytest.mark.always
@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("README.md", (r"with (\d+) exercises", r"\| exercises \| (\d+),", r"([\d,]+) lines at M1, ([\d,]+) at M13")),
        ("README.zh.md", (r"共 (\d+) 道练习", r"\| 练习 \| (\d+) 道", r"M1 有 ([\d,]+) 行，M13 有 ([\d,]+) 行")),
    ],
)
def test_the_counts_are_those_of_the_course(name: str, patterns: tuple[str, str, str]) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    course = Course.load(working_tree(ROOT))
    exercises = sum(len(load_exercises(course.snapshot, milestone.number)) for milestone in course.milestones)
    assert [re.findall(pattern, text) for pattern in patterns[:2]] == [[str(exercises)], [str(exercises)]]
    (sizes,) = re.findall(patterns[2], text)
    lines = [pytest.approx(count_lines(course.tree(number)), abs=300) for number in (1, 13)]
    assert [int(size.replace(",", "")) for size in sizes] == lines


@pytest.mark.always
@pytest.mark.parametrize("name", ["docs/en/course.md", "docs/zh/course.md"])
def test_the_exercise_is_shown_in_the_words_that_it_has(name: str) -> None:
    course = Course.load(working_tree(ROOT))
    (exercise,) = (e for e in load_exercises(course.snapshot, 3) if e.folder == "01-block-pool")
    page = exercise.pages["zh" if "zh" in name else "en"]
    (shown,) = ("".join(block.split()) for block in blocks(name, "text"))
    for words in (page.title, page.invariants[4], page.mistakes["frees-what-is-shared"]):
        assert "".join(words.replace("`", "").split()) in shown
