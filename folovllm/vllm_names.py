"""What users of vLLM type: every name that vLLM 0.32 knows is taken with its meaning, or named with the way out.

    pipeline_parallel_size=1        says what is so anyway: taken
    compilation_config={"mode": 3}  changes nothing here: taken, and one line says so
    kv_transfer_config={...}        would change something: refused by name

vllm_names.json has the names, with vLLM's own defaults; `python -m workshop.vllm_names` writes it. vllm_names.toml says
what becomes of them.

vLLM: engine/arg_utils.py, entrypoints/launchers/cli_args.py
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from folovllm.utils.checks import wrong

HAS_NOT = "vLLM has this, FoloVLLM does not"
_MODULES = (
    "inputs", "engine.arg_utils", "engine.async_llm_engine", "v1.engine.async_llm", "v1.engine.llm_engine",
    "v1.sample.logits_processor",
)  # fmt: skip


@cache
def names() -> dict[str, Any]:
    """Both files: vLLM's "engine" and "server" {argument: {"kind", "default", "spellings"}}, "methods" …, and ours."""
    file = Path(__file__)
    known: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    known |= tomllib.loads(file.with_suffix(".toml").read_text(encoding="utf-8"))
    return known | {"engine": known["engine"] | known["earlier"]}


def arguments() -> dict[str, dict[str, Any]]:
    """Of `vllm serve`, by their names."""
    return {**names()["engine"], **names()["server"]}


def is_option(word: str) -> bool:
    """Whether a command of vLLM's has such an option: --kv-transfer-config, --no-enable-lora, -pp."""
    known = {name.replace("_", "-") for name in arguments()} | {*names()["options of other commands"]}
    if word.startswith("--"):
        return bool({word[2:], word[2:].removeprefix("no-")} & known)
    return long_option(word) != word


def long_option(word: str) -> str:
    """--pipeline-parallel-size for -pp; another word stays."""
    spelled = (name for name, how in arguments().items() if word in how.get("spellings", ()))
    return next(("--" + name.replace("_", "-") for name in spelled), word)


def instead(name: str) -> str:
    return next(text for pattern, text in names()["instead"].items() if re.search(pattern, name))


def check_argument(name: str, value: object) -> str:
    """Why an argument that FoloVLLM does not have changes nothing with this value: "" where it says what is so anyway.

    Raises:
        ValueError: it would change something.
    """
    if value is None or name in names()["without_effect"]:
        return "" if value is None else str(names()["without_effect"][name])
    so = names()["so_anyway"].get(name, [arguments()[name].get("default")])
    if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in so):
        must = " or ".join(repr(each) for each in so if each is not None) or "left out"
        raise wrong(name, f"be {must}", value, f"{HAS_NOT}: {instead(name)}")
    return ""


def unknown_keyword(section: str, name: str) -> str:
    """What to say of a keyword that is none here; "" where vLLM does not know it either."""
    known = {**names()[section], **names()["engine"]}
    return f"unknown keyword {name!r}: {HAS_NOT}; {instead(name)}" if name in known else ""


def check_keywords(owner: str, method: str, given: dict[str, Any]) -> None:
    """Raises ValueError: a keyword that vLLM's method has and this one has not. TypeError: one that neither has."""
    for name, value in given.items():
        if name not in names()["methods"][owner].get(method, ()):
            raise TypeError(f"{owner}.{method}() got an unknown keyword {name!r}")
        if value is not None and value is not False:
            raise wrong(name, "be None", value, f"{HAS_NOT}: {instead(name)}")


class KnowsVLLM:
    """Names what vLLM's class of this name has beside."""

    def __getattr__(self, name: str) -> Any:
        if name == "vllm_config":
            return getattr(self, "config", None) or self.engine.config
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        for owner in type(self).__mro__:
            if name in names()["methods"].get(owner.__name__, ()) and name[:1] != "_":
                text += f": {HAS_NOT}; {instead(name)}"
        raise AttributeError(text)


class Module(ModuleType):
    """A module of vLLM's by its place: it has the public names of this package."""

    def __getattr__(self, name: str) -> Any:
        import folovllm

        if name.startswith("__") or hasattr(folovllm, name):
            return getattr(folovllm, name)
        raise ImportError(f"{self.__name__}.{name}: {HAS_NOT}; {instead(self.__name__ + name)}")


MODULES = {path: Module(path) for path in (f"folovllm.{each}" for each in _MODULES)}
