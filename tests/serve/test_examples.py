"""The example talks to a server as the notes say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.serve.support import Running

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_client.py"


def test_the_client_streams_and_gets_its_schema(server: Running) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, server.url], capture_output=True, text=True, check=True)
    answer, count, _, *cats = done.stdout.splitlines()
    assert answer.startswith("Prefix caching keeps the KV blocks")
    assert count == "30 tokens"
    assert len(cats) == 3
    for cat in cats:
        assert set(json.loads(cat)) == {"name", "age", "likes"}


def test_prompts_that_begin_alike_are_found_in_the_cache(server: Running) -> None:
    example = EXAMPLE.with_name("serve_replicas.py")
    done = subprocess.run([sys.executable, example, server.url], capture_output=True, text=True, check=True)
    *asked, engine = done.stdout.splitlines()
    cached = [int(line.split(" of ")[0].split()[-1]) for line in asked]
    assert len(cached) == 6
    assert all(count > 0 for count in (*cached[1:3], *cached[4:]))  # after the first of each rule
    assert engine.startswith("the engine: ")
