"""Clients that others wrote and that bring packages of their own: each runs in a process, in an environment of
`make clients`.

What is asserted is in clients/programs.py: typed answers by tools and by schema, streams, calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.support import Running

PROGRAMS = Path(__file__).parent / "clients/programs.py"
PYTHON = Path(sys.prefix) / "clients/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["instructor", "pydantic_ai", "litellm", "litellm_messages", "llama_index", "smolagents"],
)
def test_a_client_gets_what_it_asks_for(server: Running, name: str) -> None:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it asks the network for prices first
    command = [PYTHON, PROGRAMS, f"{server.url}/v1", name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran to its end\n"), done.stderr[-2000:]
