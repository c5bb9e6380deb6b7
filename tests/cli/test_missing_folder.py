"""A folder that is not there is refused at once: torch alone takes seconds to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

MESSAGE = "model must be 'embedded', a folder or a hub id, got '/nosuch': no such folder"
COMMANDS = [
    "serve /nosuch", "serve --model /nosuch", "generate Hi --model /nosuch", "chat --model /nosuch",
    "quantize /nosuch quantized", "bench latency --model /nosuch", "bench throughput --model=/nosuch",
]  # fmt: skip
# What is None there cannot be imported.
BEGIN = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
RUN = f"{BEGIN}from folovllm.entrypoints.cli.main import main; assert main(sys.argv[1:]) == 2"
CALL = f"{BEGIN}from folovllm import LLM, ModelLoadError\ntry: LLM('/nosuch')\nexcept ModelLoadError as error: "
CALL += "print(f'error: {error}', file=sys.stderr)"


@pytest.mark.parametrize("command", [*COMMANDS, "LLM"])
def test_a_missing_folder_is_named_before_torch_is_imported(command: str) -> None:
    program = CALL if command == "LLM" else RUN
    done = subprocess.run([sys.executable, "-c", program, *command.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, f"error: {MESSAGE}\n")
