"""`pytest tests/gpu` runs what needs a CUDA device; where there is none it skips all of it, and lists what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
NO_GPU = "needs a CUDA device, and torch sees none"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=NO_GPU), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per test function and reason, not one per case."""
    skipped: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if "tests/gpu/" in report.nodeid:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            skipped[report.nodeid.partition("[")[0], reason.removeprefix("Skipped: ")] += 1
    if skipped:
        terminalreporter.section(f"tests/gpu: {skipped.total()} skipped")
        for (name, reason), count in sorted(skipped.items()):
            terminalreporter.write_line(f"{name} ({count} case{'s' * (count > 1)}): {reason}")
