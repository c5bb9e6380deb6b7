"""`python -m milestones.run_snippets [PAGES]`: runs what the pages show, each in its milestone's tree.

A note of M3 is read in M3's tree, where a name may be what it is no longer at the root. The pages of a tree share one
process that has torch, see `fork_server`; both languages run a block once where its code is the same. What it prints is
held against the `text` block straight behind it, in each language. With `--share N` one page in N is drawn: a page's
blocks may need each other.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from milestones.chain import Course
from milestones.fork_server import serving
from milestones.output_diff import difference
from milestones.site import snippets
from milestones.site.source import ROOT
from milestones.sources import git, working_tree
from milestones.trees import build_tree, write_tree

# Imported once for all scripts of a tree.
MODULES = ("torch", "transformers", "transformers.models.qwen3.modeling_qwen3", "folovllm")
LIMIT_S = 600  # for what hangs; a busy machine may be slow
END_OF_BLOCK = "\x1d"  # printed behind each Python block of a page
SHELL = """\
#!/bin/sh
exec "{folder}/python" -m folovllm "$@"
"""


@dataclass(slots=True)
class Script:
    """Something to run: a page's Python, or one console block's commands."""

    page: str
    line: int
    language: str
    code: str
    outputs: list[tuple[str, int, snippets.Output]] = field(default_factory=list)  # page, which block, what it prints

    def key(self) -> tuple[str, str]:
        """Equal for two scripts that do the same, whatever their comments say."""
        if self.language == "python":
            return self.language, ast.dump(ast.parse(self.code))
        lines = [line.partition("  #")[0].rstrip() for line in self.code.splitlines()]
        return self.language, "\n".join(line for line in lines if line and not line.startswith("#"))


@dataclass(slots=True)
class Failure:
    where: str
    what: str


def run(names: Sequence[str] = (), workers: int = 2, *, share: int = 1, seed: int = 0) -> int:
    """Checks the code of the pages whose paths contain one of `names`, of all pages without any, and runs that of one
    page in `share`, drawn by `seed`, in both languages."""
    begun = time.monotonic()
    failures: list[Failure] = []
    trees: dict[str, dict[tuple[str, str], Script]] = {}
    checked = marked = shown = held = 0
    pages = [page for path in snippets.pages(ROOT) if _is_named(page := path.relative_to(ROOT).as_posix(), names)]
    pairs = sorted({_in_any_language(page) for page in pages})
    drawn = set(random.Random(seed).sample(pairs, -(-len(pairs) // share)))
    for page in pages:
        plan = snippets.plan((ROOT / page).read_text(encoding="utf-8"))
        failures += [Failure(f"{page}:{line}", what) for line, what in plan.problems]
        failures += [
            Failure(f"{page}:{line}", f"`{command.strip()}`: {problem}")
            for line, command, how in plan.checks
            if (problem := check(page, command, how))
        ]
        checked, marked = checked + len(plan.checks), marked + plan.marked
        for script in _scripts(page, plan, failures) if _in_any_language(page) in drawn else ():
            shown, held = shown + 1, held + len(script.outputs)
            same = trees.setdefault(tree_of(page), {}).setdefault(script.key(), script)
            if same is not script:
                same.outputs += script.outputs
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda item: list(_run_tree(Path(scratch), *item)), trees.items())
        failures += [failure for found in done for failure in found]
    for failure in failures:
        print(f"{failure.where}\n    {failure.what.strip()}".replace("\n", "\n    "), file=sys.stderr)
    ran = sum(len(scripts) for scripts in trees.values())
    print(
        f"snippets: {ran} scripts ran for {shown} shown, {held} outputs held, {checked} commands checked, "
        f"{marked} marked as not run, {len(failures)} problems, {time.monotonic() - begun:.0f} s"
    )
    return int(bool(failures))


def _is_named(page: str, names: Sequence[str]) -> bool:
    return not names or any(name in page for name in names)


def _in_any_language(page: str) -> str:
    return re.sub(r"^docs/\w+/|\.zh(?=\.md$)", "", page)


def tree_of(page: str) -> str:
    """The milestone whose tree a page is read in; "" for the repository's root."""
    match = re.match(r"docs/\w+/(m\d+)/", page)
    return match[1] if match else ""


def _scripts(page: str, plan: snippets.Plan, failures: list[Failure]) -> Iterator[Script]:
    if plan.python:
        # Where a block fails, the line in the page is the line in the traceback.
        code = ""
        for block in plan.python:
            code += "\n" * (block.line - code.count("\n")) + block.code
            code += f"print(end={END_OF_BLOCK!r}, flush=True)"
        try:
            ast.parse(code)
        except SyntaxError as error:
            failures.append(Failure(f"{page}:{error.lineno}", f"is not Python: {error.msg}"))
        else:
            outputs = [(page, i, block.output) for i, block in enumerate(plan.python) if block.output]
            yield Script(page, plan.python[0].line, "python", code, outputs)
    for block in plan.bash:
        outputs = [(page, 0, block.output)] if block.output else []
        yield Script(page, block.line, "bash", block.code, outputs)


def _run_tree(scratch: Path, name: str, scripts: dict[tuple[str, str], Script]) -> Iterator[Failure]:
    folder = scratch / (name or "root")
    _plant(name, folder)
    programs = scratch / f"bin-{name}"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",  # as in the tests; a program that sets it itself comes too late, torch is there
        "PYTHONUTF8": "1",
        "COLUMNS": "100",  # the pages' width, and no colours, whatever terminal this runs in
        "FORCE_COLOR": "",
        "TMPDIR": str(scratch),
    }
    with serving(programs, MODULES, environment, folder):
        (programs / "folovllm").write_text(SHELL.format(folder=programs), encoding="utf-8")
        (programs / "folovllm").chmod(0o755)
        for script in scripts.values():
            command = ["python", "-"] if script.language == "python" else ["bash", "-eu", "-c", script.code]
            yield from _run_script(script, command, folder, environment)


def _plant(name: str, folder: Path) -> None:
    """Writes a milestone's tree, or all of the repository."""
    snapshot = working_tree(ROOT)
    if name:
        course = Course.load(snapshot)
        snapshot = build_tree(course, course.get(name))
    write_tree(snapshot, folder)
    if not name:
        git(folder, "init", "--quiet")  # `python -m milestones` looks for its files there


def _run_script(script: Script, command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Failure]:
    executable = str(Path(environment["PATH"].split(os.pathsep)[0]) / "python") if command[0] == "python" else None
    try:
        done = subprocess.run(
            command, executable=executable, cwd=folder, env=environment, timeout=LIMIT_S, check=False, text=True,
            errors="replace", capture_output=True, input=script.code if script.language == "python" else "",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        yield Failure(f"{script.page}:{script.line}", f"did not end in {LIMIT_S} s")
        return
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-6:]
        yield Failure(f"{script.page}:{script.line}", "\n".join([f"ended with {done.returncode}:", *lines]))
        return
    printed = dict(enumerate(done.stdout.split(END_OF_BLOCK)))
    for page, place, output in script.outputs:
        text = printed.get(place, "")  # a page may end its process
        if changes := difference(output.text, text, machine=output.mark == snippets.MACHINE):
            yield Failure(f"{page}:{output.line}", changes)


def check(page: str, command: str, how: str) -> str | None:
    """What is wrong with a command that is not run; None if nothing that can be seen."""
    words = snippets.words(command)
    if how == "folovllm":
        return _parse("folovllm.entrypoints.cli.main", words[1:])
    if how == "milestones":
        return _parse("milestones.cli", words[3:])
    if how == "module":
        path = ROOT / words[2].replace(".", "/")
        return None if path.with_suffix(".py").is_file() or path.is_dir() else f"there is no {words[2]}"
    if how == "paths":
        paths = [word for word in words[3:] if "/" in word and not word.startswith("-")]
        missing = [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]
        return f"{missing[0]} does not exist" if missing else None
    if how == "targets":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"the Makefile has no {unknown[0]}" if unknown else None
    return None


def _parse(module: str, arguments: list[str]) -> str | None:
    said = io.StringIO()
    for mark in ("|", ">", "&&", ";", "2>&1"):
        arguments = arguments[: arguments.index(mark)] if mark in arguments else arguments
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            importlib.import_module(module).build_parser().parse_args(arguments)
        except SystemExit as end:
            return said.getvalue().strip().splitlines()[-1] if end.code else None
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m milestones.run_snippets", description="run the code that the pages show"
    )
    parser.add_argument("pages", nargs="*", help="only pages whose path has this in it (default: all)")
    parser.add_argument("--share", metavar="N", type=int, default=1, help="run one page in N (default: all)")
    seed = random.randrange(1_000_000)
    parser.add_argument("--seed", type=int, default=seed, help="which of them (default: others each time)")
    args = parser.parse_args()
    if args.share > 1:
        print(f"one page in {args.share}; the same again: run_snippets --share {args.share} --seed {args.seed}")
    sys.exit(run(args.pages, share=args.share, seed=args.seed))
