"""A milestone as a folder of its own: package, tests, examples, notes, a README, and a git repository with
one commit."""

from __future__ import annotations

from pathlib import Path

from milestones.chain import Course
from milestones.sources import IDENTITY, File, Snapshot, git
from milestones.spec import Milestone, MilestoneError

COMMAND_LINE = "folovllm/__main__.py"
README = """\
# FoloVLLM {label}

{summary_en}

{summary_zh}

FoloVLLM as it stands at {id}: everything up to here, and nothing later.
这是 FoloVLLM 在 {id} 时的样子：到此为止的一切，不含之后的内容。

With a virtual environment of its own · 使用独立的虚拟环境：

```bash
python3 -m venv .venv && . .venv/bin/activate
pip install -c constraints.txt -e '.[test]'
```

Or with the one of the repository that this tree was taken from, if that is active: then nothing has to be installed.
Either way, run it from this folder, with `python` in front. The command `folovllm` belongs to the environment and may
be another milestone's.
也可以直接使用来源仓库的虚拟环境（已激活时）：什么都不用装。两种方式都在本目录下、以 `python` 开头运行；`folovllm`
命令属于虚拟环境，可能是另一个里程碑的。

```bash
{commands}
```

| | |
|---|---|
| package · 代码 | {lines:,} lines in {modules} files under `folovllm/` |
| tests · 测试 | {tests} |
| examples · 示例 | {examples} |
| notes · 讲义 | `docs/en/{id}/`, `docs/zh/{id}/` |
"""


def run_commands(milestone: Milestone, tree: Snapshot) -> list[str]:
    """Commands that run this tree and no other, whatever is installed; the shortest first.

    pytest and `python -m` put the folder in front of the path, and the examples their own tree.
    """
    examples = sorted(path for path in tree if path.startswith(f"examples/{milestone.id}_"))
    commands = [f"python {path}" for path in examples[:1]]
    if COMMAND_LINE in tree:
        commands.append("python -m folovllm --help")
    return [*commands, "python -m pytest"]


def build_tree(course: Course, milestone: Milestone) -> dict[str, File]:
    """All files of a checked-out milestone: what the chain resolves, and a README."""
    tree = course.tree(milestone.number)
    return {**tree, "README.md": File(readme(milestone, tree).encode("utf-8"))}


def readme(milestone: Milestone, tree: Snapshot) -> str:
    examples = [path for path in tree if path.startswith("examples/m")]
    return README.format(
        id=milestone.id,
        label=milestone.label,
        summary_en=milestone.summary["en"],
        summary_zh=milestone.summary["zh"],
        lines=count_lines(tree),
        modules=sum(is_code(path) for path in tree),
        commands="\n".join(run_commands(milestone, tree)),
        tests=" … ".join(f"`tests/{name}`" for name in dict.fromkeys(("m0", milestone.id))),
        examples=" ".join(f"`{path}`" for path in examples) or "none",
    )


def is_code(path: str) -> bool:
    return path.startswith("folovllm/") and path.endswith(".py")


def count_lines(tree: Snapshot) -> int:
    """Lines of the package's Python."""
    return sum(file.data.count(b"\n") for path, file in tree.items() if is_code(path))


def write_tree(tree: Snapshot, folder: Path) -> None:
    for path, file in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        if file.executable:
            target.chmod(0o755)


def checkout(course: Course, milestone: Milestone, folder: Path) -> int:
    """Write `milestone` into a new or empty `folder` and commit it there; returns the number of files."""
    if folder.is_symlink() and not folder.exists():
        raise MilestoneError(f"DIR must be a folder, but {folder} is a link to nothing")
    if folder.exists() and not folder.is_dir():
        raise MilestoneError(f"DIR must be a folder, but {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()):
        raise MilestoneError(f"DIR must be new or empty, but {folder} has files in it; name another folder")
    tree = build_tree(course, milestone)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tree(tree, folder)
    except OSError as error:  # under a file, or where nothing may be written
        raise MilestoneError(f"DIR must be a folder that can be written to, got {folder}: {error.strerror}") from error
    # A person's global hooks, ignores and signing have no say in this commit.
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "commit.gpgSign=false"]
    git(folder, *quiet, "-c", "init.defaultBranch=main", "init", "--quiet", "--template=")
    git(folder, *quiet, "add", "--force", "--all")
    git(folder, *quiet, "commit", "--quiet", "--message", milestone.label, env=IDENTITY)
    return len(tree)
