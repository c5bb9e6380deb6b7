"""What the READMEs show has to run, and both have to show the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = ["README.md", "README.zh.md"]


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("name", READMES)
def test_the_ten_lines_of_python_run_and_print_text(name: str) -> None:
    first, second = blocks(name, "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", first + second], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
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


def test_both_readmes_have_the_same_parts() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in READMES]
    shapes = [[len(level) for level in re.findall(r"^(#+) ", text, flags=re.MULTILINE)] for text in texts]
    assert shapes[0] == shapes[1]
    commands = [[line.partition("#")[0].strip() for line in "".join(blocks(n, "bash")).split("\n")] for n in READMES]
    assert commands[0] == commands[1]
    texts[1] = texts[1].replace("docs/zh/house.svg", "docs/figures/house.svg")  # the drawing with Chinese labels
    links = [re.findall(r"\]\(([^)]+)\)", text.replace("docs/zh", "docs/en")) for text in texts]
    assert sorted(links[0][1:]) == sorted(links[1][1:])


@pytest.mark.parametrize("name", READMES)
def test_every_link_leads_to_a_file(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    missing = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not (ROOT / link).exists()]
    assert missing == []
