"""What an import costs: the package and its plain data load neither torch nor transformers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import folovllm

HEAVY = ("torch", "transformers", "accelerate", "safetensors", "numpy", "rich")


def modules_after(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after running `code`."""
    code += f"\nimport sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


@pytest.mark.parametrize(
    "code",
    [
        "import folovllm",
        "from folovllm import config, sampling_params, request, outputs, errors",
        "from folovllm import model_loader\nfrom folovllm.utils import common, devices, logging",
        "import folovllm as f; f.Request('r', 'hi', [1], f.SamplingParams(n=2)).get_seqs()[0].fork('r-2')",
    ],
    ids=["package", "plain data", "loader and utils", "plain data at work"],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert modules_after(code) == []


@pytest.mark.parametrize(
    "names",
    [
        "ModelConfig CacheConfig SchedulerConfig EngineConfig SamplingParams SamplingType",
        "Request RequestStatus Sequence SequenceData SequenceStatus",
        "RequestOutput CompletionOutput RequestMetrics Logprob",
        "ModelLoader get_model_and_tokenizer",
        "FoloVLLMError ModelLoadError PromptTooLongError LogitsNotFiniteError NoTokenLeftError IllegalTransition",
    ],
)
def test_public_names_resolve(names: str) -> None:
    for name in names.split():
        assert getattr(folovllm, name).__name__ == name
        assert name in folovllm.__all__
        assert name in dir(folovllm)


@pytest.mark.exhaustive
def test_one_public_name_is_one_class() -> None:
    """Whichever module it is taken from, `LLM` is the class that a program gets, and no other is derived from it."""
    files = Path(folovllm.__file__).parent.rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    made = Counter(node.name for node in classes)
    bases = {base.id for node in classes for base in node.bases if isinstance(base, ast.Name)}
    assert not [name for name in folovllm.__all__ if made[name] > 1]
    assert not [name for name in bases if name in folovllm.__all__ and name.endswith(("LLM", "Params", "Output"))]


def test_a_public_name_is_the_one_in_its_own_module() -> None:
    for name in folovllm.__all__:
        if name != "__version__":
            public = getattr(folovllm, name)
            assert public is vars(sys.modules[public.__module__])[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'folovllm' has no attribute 'LLMM'"):
        _ = folovllm.LLMM
    assert not hasattr(folovllm, "nothing")
