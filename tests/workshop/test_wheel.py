"""The package as others get it: a wheel in an environment that has no other folovllm, far from the repository.

What it needs (torch, fastapi, …) is taken from this environment: a path in a `.pth` file brings packages, and not the
editable install beside them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not (find_spec("mypy") and find_spec("fastapi_offline")), reason="make wheel installs what it needs"
    ),
]
USER = """\
from folovllm import LLM, RequestOutput, SamplingParams

llm = LLM(dtype="float32")
outputs: list[RequestOutput] = llm.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=4))
for output in outputs:
    text: str = output.outputs[0].text
    reveal_type(output.outputs[0].token_ids)
    print(output.prompt, text)
SamplingParams(max_token=4)
number: int = outputs[0].outputs[0].text
"""
LEFT_OUT = "[mypy-torch.*,transformers.*]\nfollow_imports = skip\n"  # of 28 seconds they take 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("WHEEL"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder of commands."""
    folder = tmp_path_factory.mktemp("environment") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True)
    return folder / "bin"


def test_it_has_what_an_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        about = Parser().parsestr(archive.read(metadata).decode("utf-8"))
    assert {"folovllm/py.typed", "folovllm/__init__.pyi", "folovllm/assets/embedded/config.json"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"folovllm", metadata.partition("/")[0]}
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", about.get_payload())
    assert pictures
    assert all(picture.startswith("https://") for picture in pictures)
    assert about["Version"] in wheel.name
    assert len(about.get_all("Project-URL")) >= 2


def test_the_demo_runs(bare: Path, tmp_path: Path) -> None:
    python = [bare / "python", "-c", "import folovllm; print(folovllm.__file__)"]
    where = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(bare.parent)
    done = subprocess.run([bare / "folovllm", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_help_names_extras_as_they_are_installed_here(bare: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [bare / "folovllm", "serve", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = " ".join(done.stdout.split())
    assert "pip install 'folovllm[serve]'" in said
    assert "in the clone" not in said


def test_the_server_answers_and_ends(bare: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    body = {"model": "embedded", "prompt": "Once", "max_tokens": 4, "temperature": 0}
    url = f"http://127.0.0.1:{port}"
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    command = [bare / "folovllm", "serve", "--port", str(port)]
    log = tmp_path / "log"
    with log.open("w") as sink, subprocess.Popen(command, cwd=tmp_path, stdout=sink, stderr=sink) as server:
        try:
            while True:
                assert server.poll() is None, log.read_text()
                try:
                    urllib.request.urlopen(f"{url}/health").close()
                    break
                except OSError:
                    time.sleep(0.1)
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] == 4
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_mypy_sees_types(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{LEFT_OUT}", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", bare / "python", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("user.py")]
    assert [line.split(": ", 1)[0] for line in said] == ["user.py:7", "user.py:9", "user.py:10"], done.stdout
    assert "list[int]" in said[0]
    assert 'did you mean "max_tokens"?' in said[1]
