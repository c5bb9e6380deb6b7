"""No test may reach for the network, the loaders' progress bars would bury what pytest prints, and neither the tests
before a test nor the speed of the machine may have a say in what it finds.

The variables are set before anything imports transformers and torch, which read them when they are imported.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("COLUMNS", None)  # the width of a terminal, where a shell hands it on: tables are as wide as in a pipe
# The tests' tensors are tiny: a second thread wins nothing, and on a busy machine every step waits for it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# The process that hands the tests to workers runs none: torch would cost it some seconds.
RUNS_TESTS = "PYTEST_XDIST_WORKER" in os.environ or "-n" not in sys.argv or "-n 0" in " ".join(sys.argv)
if RUNS_TESTS:
    import torch

# Without a GPU the Triton kernels run in Triton's interpreter: to be said before a module with kernels is imported.
if RUNS_TESTS and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("FOLOVLLM_CHECK_KERNELS", "no")  # by each engine on the stand-in for a GPU, interpreted

# The same examples in every run, and none of them too slow.
settings.register_profile("folovllm", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("folovllm")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Whatever the tests before have drawn. This is torch's generator: Python's and numpy's are pytest-randomly's."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pace")
    group.addoption("--pace", choices=("slow", "fast"), help="delay the engine, or the tests (tests/pace.py)")
    group.addoption("--pace-seed", type=int, help="draw the delays of another run again")
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help="run one test in N, drawn by --randomly-seed (default: all)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before a milestone has an asynchronous engine, there is no file for it, and a pace changes nothing."""
    if config.option.pace and find_spec("tests.pace") is not None:
        config.pluginmanager.register(import_module("tests.pace"))


@pytest.hookimpl(trylast=True)  # what -m leaves out is gone by then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of what is left, one test in `--share`. pytest-randomly gives each worker the same seed, so all draw the same."""
    share = config.option.share
    if share > 1 and items:
        names = sorted({_drawn_as(item) for item in items})
        drawn = {*random.Random(_seed(config)).sample(names, -(-len(names) // share)), "always"}
        config.hook.pytest_deselected(items=[item for item in items if _drawn_as(item) not in drawn])
        items[:] = [item for item in items if _drawn_as(item) in drawn]


def _drawn_as(item: pytest.Item) -> str:
    """Under its own name, or under its file's where all the tests of one look at what is made once for them."""
    if item.get_closest_marker("always"):
        return "always"
    return item.nodeid.partition("::")[0] if item.get_closest_marker("together") else item.nodeid


def _seed(config: pytest.Config) -> int:
    return int(getattr(config.option, "randomly_seed", 0))


@pytest.fixture(
    scope="module",
    params=["no", pytest.param("yes", marks=pytest.mark.exhaustive)],
    ids=["cpu without bf16 units", "cpu with bf16 units"],
)
def has_bf16_units(request: pytest.FixtureRequest) -> str:
    """Both kinds of CPU, one after the other, for a module's other fixtures. Changes nothing by itself."""
    return str(request.param)


@pytest.fixture(scope="module")
def printed(has_bf16_units: str) -> Any:
    """What the examples print, as helpers.Printed."""
    return import_module("tests.helpers").Printed(has_bf16_units)


@pytest.fixture
def either_cpu(has_bf16_units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice, as on both kinds of CPU: with bf16 units, dtype="auto" is bfloat16, and little is exact.

    For the examples and for what promises the same tokens. To run every test as on one kind:
    FOLOVLLM_CPU_BF16=yes make test.
    """
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", has_bf16_units)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Why tests were skipped: a line for each reason, however many they are. How a draw that failed is drawn again."""
    stats = terminalreporter.stats
    skipped: Counter[str] = Counter()
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason.removeprefix("Skipped: ")] += 1
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    if config.option.share > 1 and (stats.get("failed") or stats.get("error")):
        arguments = shlex.join([*config.invocation_params.args, f"--randomly-seed={_seed(config)}"])
        terminalreporter.write_line(f"The same draw again: python -m pytest {arguments}")
