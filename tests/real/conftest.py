"""The model's folder, made once per machine in the user's cache; engines and the oracle on it, made once per run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from folovllm import LLM
from tests.real.oracle import Oracle
from workshop.smollm2 import CannotMakeError, default_folder, make_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real_model)


@pytest.fixture(scope="session", autouse=True)
def all_cores() -> Iterator[None]:
    """The other tests' models are tiny, and get one thread. This one has 135 million weights."""
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(cores or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_folder() -> Path:
    try:
        return make_folder(default_folder())
    except CannotMakeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def oracle(real_folder: Path) -> Oracle:
    model = AutoModelForCausalLM.from_pretrained(real_folder, dtype=torch.float32).eval()
    return Oracle(model, AutoTokenizer.from_pretrained(real_folder))


def make_llm(folder: Path, **kwargs: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", max_model_len=1024, num_kv_blocks=512, **kwargs)


@pytest.fixture(scope="session")
def llm(real_folder: Path) -> LLM:
    return make_llm(real_folder, enable_prefix_caching=False)


@pytest.fixture(scope="session")
def chunked_llm(real_folder: Path) -> LLM:
    """Few tokens to a step, so that prompts come in by chunks among the others' decodes; and a prefix cache."""
    return make_llm(real_folder, max_num_batched_tokens=32, max_num_seqs=8, enable_prefix_caching=True)
