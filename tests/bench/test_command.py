"""`folovllm bench` and `python -m workshop.bench` as commands: what is listed, imported and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from folovllm.bench.command import BENCHES
from folovllm.bench.report import counted, medians
from folovllm.entrypoints.cli.main import main
from tests.bench.support import run
from workshop.bench.__main__ import MAKERS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", BENCHES | MAKERS)
def test_each_benchmark_has_options_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--json" in shown
    assert "default: [" not in " ".join(shown.split())


@pytest.mark.parametrize("argv", [["--help"], ["latancy"]], ids=" ".join)
def test_the_list_and_a_wrong_name_import_no_torch(argv: list[str]) -> None:
    code = (
        "import sys\nfrom folovllm.entrypoints.cli.main import main\n"
        f"try: code = main(['bench', *{argv!r}])\nexcept SystemExit as exit: code = exit.code\n"
        "print(code, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{0 if '--help' in argv else 2} False", done.stderr


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["latency", "--shape", "gpt-5"], "invalid choice: 'gpt-5'"),
        (["latency", "--model", "/no/such/folder"], "no such folder"),
        (["latency", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["latency", "--output-len", "1"], "output_len must be at least 2, got 1"),
        (["latency", "--threads", "0"], "threads must be at least 1, got 0"),
        (["latency", "--dtype", "bf16"], "did you mean 'bfloat16'?"),
        (["throughput", "--num-requests", "0"], "num_requests must be at least 1, got 0"),
        (["throughput", "--dtype", "bf16"], "dtype must be one of 'auto', 'float32'"),
        (["sampler", "--batch-sizes", "0"], "batch_sizes must be at least 1, got 0"),
        (["load", "--json", "/no/such/folder/x.json"], "json must be in an existing folder"),
        (["scheduler", "--trace", "x"], "it has no engine with steps to write down"),
        (["load", "--trace", "x"], "it has no engine with steps to write down"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # argparse's own way out
        assert run(argv) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("error: ")
    assert text in captured.err


def test_a_result_that_could_not_be_written_is_refused_before_measuring(tmp_path: Path, capsys) -> None:
    assert main(["bench", "decode", "--json", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: json must be a file, got '{tmp_path}', which is a folder\n"


def test_one_round_has_no_medians() -> None:
    assert [medians(n, "round") for n in (1, 3)] == ["One round", "Medians of 3 rounds"]
    assert [counted(n, "step") for n in (1, 2)] == ["1 step", "2 steps"]
