"""A folder that is not there is refused at once: torch alone takes seconds to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

MESSAGE = "model must be 'embedded', a folder or a hub id, got '/nosuch': no such folder"
COMMANDS = [
    "serve /nosuch", "serve --model /nosuch", "generate Hi --model /nosuch", "chat --model /nosuch",
    "quantize /nosuch quantized", "bench latency --model /nosuch", "bench serve-load --model=/nosuch",
]  # fmt: skip
RUN = "from folovllm.entrypoints.cli.main import main; assert main(sys.argv[1:]) == 2"
CALL = "from folovllm import LLM, ModelLoadError, AsyncLLM\ntry: {}('/nosuch')\nexcept ModelLoadError as error: print("
CALL += "f'error: {{error}}', file=sys.stderr); assert error.__cause__ is None and error.__context__ is None"


@pytest.mark.parametrize("command", [*COMMANDS, "LLM"])
def test_a_missing_folder_is_named_before_torch_is_imported(command: str) -> None:
    program = CALL.format(command) if command == "LLM" else RUN
    # What is None there cannot be imported.
    program = f"import sys; sys.modules['torch'] = sys.modules['transformers'] = None; {program}"
    if command == "LLM":
        program = program.replace("None; ", "None\n").replace(", AsyncLLM", "")
    words = [sys.executable, "-c", program, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, f"error: {MESSAGE}\n")
