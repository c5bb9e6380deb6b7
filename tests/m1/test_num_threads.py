"""How many threads torch computes with: one for the embedded model, where nobody has chosen a number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.engine import one_thread
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.helpers import in_a_fork, make_hf_folder

TORCHS_OWN = 3


@pytest.fixture(autouse=True)
def nobody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(one_thread, "torchs_own_numbers", lambda: frozenset({TORCHS_OWN}))
    torch.set_num_threads(TORCHS_OWN)
    yield
    torch.set_num_threads(before)


@register_logits_processor("m1_num_threads")
class Sees(LogitsProcessor):
    """How many threads torch had in a step."""

    seen: ClassVar[set[int]] = set()

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        Sees.seen.add(torch.get_num_threads())
        if self.rows[0].params.extra_args["m1_num_threads"] == "fail":
            raise ValueError("inside a step")
        return logits


@pytest.fixture(scope="module")
def embedded() -> LLM:
    return LLM(device="cpu")


def seen_in(llm: LLM, say: str = "go on") -> set[int]:
    Sees.seen = set()
    llm.generate([[1]], SamplingParams(max_tokens=3, extra_args={"m1_num_threads": say}), use_tqdm=False)
    return Sees.seen


def test_the_embedded_model_computes_with_one_and_leaves_torch_as_it_was(embedded: LLM) -> None:
    assert seen_in(embedded) == {1}
    assert torch.get_num_threads() == TORCHS_OWN


def test_torch_is_as_it_was_after_a_step_that_failed(embedded: LLM) -> None:
    with pytest.raises(ValueError, match="^inside a step$"):
        seen_in(embedded, "fail")
    assert (Sees.seen, torch.get_num_threads()) == ({1}, TORCHS_OWN)


def test_a_number_that_torch_was_given_holds(embedded: LLM) -> None:
    torch.set_num_threads(2)
    assert seen_in(embedded) == {2}


def test_the_environments_number_holds(embedded: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(TORCHS_OWN))
    assert seen_in(embedded) == {TORCHS_OWN}


def test_other_models_compute_with_as_many_as_torch_has(text_model_folder) -> None:
    assert seen_in(LLM(str(text_model_folder), dtype="float32", device="cpu")) == {TORCHS_OWN}


def test_what_torch_takes_by_itself_is_known() -> None:
    code = (
        "import torch; from folovllm.engine.one_thread import torchs_own_numbers as own; "
        "print(torch.get_num_threads() in own())"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_fork_computes_and_does_not_wait_for_torchs_threads(tmp_path: Path) -> None:
    """It has none of them. The vectors of so many tokens are read by several, where there are."""
    folder, params = make_hf_folder(tmp_path, hidden_size=256), SamplingParams(temperature=0, max_tokens=2)
    llm = LLM(str(folder), dtype="float32", device="cpu", skip_tokenizer_init=True)

    def tokens(start: int) -> list[int]:
        return llm.generate([[start, *range(5, 255)]], params, use_tqdm=False)[0].outputs[0].token_ids

    expected = tokens(1)

    def work() -> None:
        tokens(2)  # what is not in a cache
        assert tokens(1) == expected

    in_a_fork(work)
    assert tokens(1) == expected
