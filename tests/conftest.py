"""No test may reach for the network, and the loaders' progress bars would bury what pytest prints.

Set here, before anything imports transformers: both are read when it is imported.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The tests' tensors are tiny: a second thread wins nothing, and on a busy machine every step waits for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Without a GPU the Triton kernels run in Triton's interpreter: to be said before a module with kernels is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pace")
    group.addoption("--pace", choices=("slow", "fast"), help="delay the engine, or the tests (tests/pace.py)")
    group.addoption("--pace-seed", type=int, help="draw the delays of another run again")


def pytest_configure(config: pytest.Config) -> None:
    """Before a milestone has an asynchronous engine, there is no file for it, and a pace changes nothing."""
    if config.option.pace and find_spec("tests.pace") is not None:
        config.pluginmanager.register(import_module("tests.pace"))


@pytest.fixture(scope="module", params=["no", "yes"], ids=["cpu without bf16 units", "cpu with bf16 units"])
def has_bf16_units(request: pytest.FixtureRequest) -> str:
    """Both kinds of CPU, one after the other, for a module's other fixtures. Changes nothing by itself."""
    return str(request.param)


@pytest.fixture
def either_cpu(has_bf16_units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice, as on both kinds of CPU: with bf16 units, dtype="auto" is bfloat16, and little is exact.

    For the examples and for what promises the same tokens. To run every test as on one kind:
    FOLOVLLM_CPU_BF16=yes make test.
    """
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", has_bf16_units)
