"""The root's command, as it is typed."""

from __future__ import annotations

import pytest

from folovllm.entrypoints.cli.main import main


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    try:
        code = main(argv)
    except SystemExit as exit_:  # argparse's own way out
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
