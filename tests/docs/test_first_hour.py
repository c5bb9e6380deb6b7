"""The engine in one file: its tokens are Hugging Face's and the engine's own, and the page shows what it prints."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shlex
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import rich
import torch
from transformers import AutoModelForCausalLM

from folovllm import LLM, SamplingParams
from milestones.site.source import ROOT
from workshop.first_hour_notebook import NOTEBOOK

FILE = ROOT / "examples/one_file_engine.py"


@pytest.fixture(scope="module")
def one() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_engine", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def oracle(one: ModuleType) -> Any:
    return AutoModelForCausalLM.from_pretrained(one.EMBEDDED, dtype=torch.float32)


def check_pool(engine: Any) -> None:
    """Each reference is of a running request, and what nobody refers to is free."""
    pool = engine.scheduler.pool
    refs = [0] * len(pool.refs)
    for request in engine.scheduler.running:
        for block in request.blocks:
            refs[block] += 1
    assert refs == pool.refs
    assert set(pool.free) == {block for block, number in enumerate(refs) if number == 0}


@pytest.mark.parametrize("seed", range(6))
def test_greedy_tokens_are_hugging_faces_in_a_pool_that_is_too_small(one, oracle, seed):
    rng = random.Random(seed)
    size = rng.choice([4, 8])
    engine = one.Engine(num_blocks=32 // size, block_size=size, max_tokens_in_step=rng.choice([3, 8, 32]))
    shared = [rng.randrange(3072) for _ in range(12)]
    requests = [
        one.Request([*shared[: rng.randrange(12)], rng.randrange(3072)], max_tokens=rng.randrange(4, 21))
        for _ in range(8)
    ]
    for request in requests:
        engine.scheduler.add(request)
    preempted = []
    while engine.step():
        check_pool(engine)
        preempted += [request for request in engine.scheduler.waiting if request.output]
    assert preempted  # or the pool was large enough, and nothing was shown
    for request in requests:
        expected = oracle.generate(
            torch.tensor([request.prompt]), max_new_tokens=request.max_tokens, do_sample=False,
            eos_token_id=sorted(engine.endings), pad_token_id=0,
        )[0, len(request.prompt) :]  # fmt: skip
        assert request.output == expected.tolist()


def test_its_answers_are_those_of_the_engine(one):
    prompts = ["Once upon a time", "A kernel is", "什么是分页注意力？"]
    engine = one.Engine()
    requests = [one.Request(engine.tokenizer(prompt)["input_ids"], max_tokens=40) for prompt in prompts]
    for request in requests:
        engine.scheduler.add(request)
    while engine.step():
        pass
    outputs = LLM(dtype="float32").generate(prompts, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    assert [request.output for request in requests] == [output.outputs[0].token_ids for output in outputs]


def test_a_prefix_that_was_computed_is_found_again(one):
    engine = one.Engine(block_size=4)
    first, second = one.Request(list(range(10, 22)), max_tokens=2), one.Request(list(range(10, 22)), max_tokens=2)
    engine.scheduler.add(first)
    engine.step()
    engine.scheduler.add(second)
    plan = engine.step()
    assert (plan[first], plan[second]) == (1, 4)  # two of its three blocks; of the last one token has to be computed


def test_top_p_draws_among_the_fewest_likeliest_tokens(one):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    request = one.Request([1], temperature=1.0, top_p=0.7, seed=1)
    drawn = [one.sample(logits, request) for _ in range(4000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=4).double()
    expected = torch.tensor([0.625, 0.375], dtype=torch.float64) * len(drawn)
    assert counts[2:].sum() == 0
    assert ((counts[:2] - expected) ** 2 / expected).sum() < 10.8  # chi-square, one degree of freedom, 0.1%


def test_what_can_never_run_is_refused_by_name(one):
    engine = one.Engine(num_blocks=2, block_size=4)
    with pytest.raises(ValueError, match=r"must fit into 2 blocks, got 6 \+ 3 tokens, which need 3"):
        engine.scheduler.add(one.Request([1] * 6, max_tokens=3))


def test_an_answer_is_shown_whole_and_as_it_is():
    """Chinese has no spaces to break a line at, and a prompt may hold what looks like rich's markup."""
    done = subprocess.run(
        [sys.executable, str(FILE), "--max-tokens", "24", "从前", "[b]Once"],
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert "…" not in done.stdout
    assert len(re.findall(r"[\u4e00-\u9fff]", done.stdout)) > 18  # more than a line holds
    assert "[b]Once" in done.stdout


def test_it_is_one_file_that_can_be_read_in_an_hour():
    text = FILE.read_text(encoding="utf-8")
    assert text.count("\n") <= 350
    assert "import folovllm" not in text
    assert "from folovllm" not in text


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An empty `__main__`, in the repository's folder and 100 columns wide. A process would import torch anew."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)  # dataclasses look their module up
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(rich, "_console", None)  # it keeps the width that it was made with
    monkeypatch.setattr(sys, "argv", [str(FILE)])
    monkeypatch.chdir(ROOT)
    return module


def test_the_notebook_runs_from_top_to_bottom_and_prints_what_it_shows(main, monkeypatch, capsys):
    """Cell after cell in one namespace, as a notebook's kernel does it."""
    monkeypatch.chdir(NOTEBOOK.parent)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]
    for cell, text in zip(cells, shown, strict=True):
        exec(compile("".join(cell["source"]), "<cell>", "exec", dont_inherit=True), main.__dict__)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == text.splitlines()
    assert sum(map(bool, shown)) == 7


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_shows_what_each_break_prints(language, main, monkeypatch, capsys):
    """A break is a line of the file, what to put in its place, a command, and what it prints then."""
    page = (ROOT / f"docs/{language}/first-hour.md").read_text(encoding="utf-8")
    pattern = (
        r"```diff\n-(?P<old>[^\n]*)\n\+(?P<new>[^\n]*)\n```"
        r".*?```bash\npython (?P<command>[^\n]*)\n```.*?```text\n(?P<text>.*?)```"
    )
    breaks = list(re.finditer(pattern, page, re.DOTALL))
    assert len(breaks) == 3
    source = FILE.read_text(encoding="utf-8")
    for found in breaks:
        assert source.count(found["old"] + "\n") == 1
        path, *arguments = shlex.split(found["command"])
        assert path == "examples/one_file_engine.py"
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        exec(compile(source.replace(found["old"], found["new"]), path, "exec", dont_inherit=True), main.__dict__)
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == found["text"].splitlines()
