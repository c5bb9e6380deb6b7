"""A milestone as a folder of its own: package, tests, examples, notes, a README, and a git repository with
one commit."""

from __future__ import annotations

import shutil
import textwrap
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

## 1. Set up · 准备

With the virtual environment of the repository that this tree was taken from, if that is active, nothing has to be
installed. Or with one of its own. Either way, run everything from this folder, with `python` in front: the command
`folovllm` belongs to the environment and may be another milestone's.
来源仓库的虚拟环境已激活时，什么都不用装；也可以用独立的虚拟环境。两种方式都在本目录下、以 `python` 开头运行：`folovllm`
命令属于虚拟环境，可能是另一个里程碑的。

```bash
python3 -m venv .venv && . .venv/bin/activate
pip install -c constraints.txt -e '.[test]'
```

## 2. Read · 阅读

{pages}

Some links lead to pages that are not here: they are in the clone's `docs/`.
有的链接指向这里没有的页，它们在来源仓库的 `docs/` 里。

## 3. Run · 运行

```bash
{commands}
```
{expected}
## 4. Exercises and what comes next · 练习与下一步

In the clone · 在来源仓库中：

```bash
{afterwards}
```

| | |
|---|---|
| package · 代码 | {lines:,} lines in {modules} files under `folovllm/` |
| tests · 测试 | {tests} |
| examples · 示例 | {examples} |
"""
EXPECTED = """
The first prints, among other things · 第一条命令会打印出：

```text
{text}
```
"""
LAB_EXPECTED = {
    "en": "   It prints, among other things:\n\n   ```text\n{text}\n   ```\n",
    "zh": "   会打印出：\n\n   ```text\n{text}\n   ```\n",
}
LAB_README = {
    "en": """\
# M{number}: {title} · exercises

{summary}

This is FoloVLLM as it stands at {id}, with some functions emptied for you to write. Everything happens in this folder,
in the environment of the clone that it came from:

1. **Read** the note's first page, [docs/en/{id}/index.md](docs/en/{id}/index.md). Its table has the pages and exercises
   in turn. Some links lead to pages that are not here: they are in the clone's `docs/`.
2. **Watch**: `python -m milestones watch`. It shows the first exercise: what must hold, and where to write. Its keys
   ask you to predict, give a hint, go on.
3. **Write** it, and save: it is checked. `python -m milestones check` does so once.
4. When all are solved, **run** it: `{run}`, and the tests: `python -m pytest`.
{expected}
What the notes tell you to run works here when all are solved. Before that, run it in the whole milestone:
`python -m milestones checkout {id} ../{id}`. In both write `python -m folovllm` for `folovllm`: the installed command
runs the clone's own engine.

| | exercise | file |
|---|---|---|
{rows}

`python -m milestones progress` shows how far you are, `solution` the course's own code, `update` brings later fixes of
the course. This folder is a git repository: commit as you like.
""",
    "zh": """\
# M{number}：{title} · 练习

{summary}

这是 FoloVLLM 在 {id} 时的样子，其中一些函数被清空，等你来写。一切都在本目录中进行，使用来源仓库的虚拟环境：

1. **阅读**笔记的首页：[docs/zh/{id}/index.md](docs/zh/{id}/index.md)。首页的表按顺序列出各页和各道练习。
   有的链接指向这里没有的页，它们在来源仓库的 `docs/` 里。
2. **打开**：`python -m milestones watch`。它给出第一道练习：要满足什么，写在哪里。按键用来预测、看提示、到下一题。
3. **动手写**，保存后自动检查。只查一次：`python -m milestones check`。
4. 全部完成后**运行**：`{run}`，以及测试：`python -m pytest`。
{expected}
笔记里让你运行的命令和代码，全部完成后可以在这里运行；在那之前，请在完整的里程碑里运行：
`python -m milestones checkout {id} ../{id}`。两处都把 `folovllm` 写成 `python -m folovllm`：装好的 `folovllm`
命令运行的是来源仓库自己的引擎。

| | 练习 | 文件 |
|---|---|---|
{rows}

`python -m milestones progress` 查看进度，`solution` 查看课程自己的代码，`update` 合入课程后来的修正。本目录是一个 git
仓库，可以随意提交。
""",
}


def run_commands(milestone: Milestone, tree: Snapshot) -> list[str]:
    """Commands that run this tree and no other, whatever is installed; the shortest first.

    pytest and `python -m` put the folder in front of the path, and the examples their own tree.
    """
    examples = sorted(path for path in tree if path.startswith(f"examples/{milestone.id}_"))
    commands = [milestone.run] if milestone.run else [f"python {path}" for path in examples[:1]]
    if COMMAND_LINE in tree:
        commands.append("python -m folovllm --help")
    return [*commands, "python -m pytest"]


def build_tree(course: Course, milestone: Milestone) -> dict[str, File]:
    """All files of a checked-out milestone: what the chain resolves, and a README."""
    tree = course.tree(milestone.number)
    following = next((m.id for m in course.milestones if m.number == milestone.number + 1), None)
    return {**tree, "README.md": File(readme(milestone, tree, following).encode("utf-8"))}


def readme(milestone: Milestone, tree: Snapshot, following: str | None) -> str:
    afterwards = [f"python -m milestones start {milestone.id} ../{milestone.id}-lab"]
    afterwards += [f"python -m milestones read {following}"] if following else []
    examples = [path for path in tree if path.startswith("examples/m")]
    return README.format(
        id=milestone.id,
        label=milestone.label,
        summary_en=milestone.summary["en"],
        summary_zh=milestone.summary["zh"],
        lines=count_lines(tree),
        modules=sum(is_code(path) for path in tree),
        commands="\n".join(run_commands(milestone, tree)),
        expected=EXPECTED.format(text=milestone.expect) if milestone.expect else "",
        pages=_pages(milestone, tree),
        afterwards="\n".join(afterwards),
        tests=" … ".join(f"`tests/{name}`" for name in dict.fromkeys(("m0", milestone.id))),
        examples=" ".join(f"`{path}`" for path in examples) or "none",
    )


def _pages(milestone: Milestone, tree: Snapshot) -> str:
    """The note's first page in each language, as links to what is there."""
    names = {"en": "English", "zh": "中文"}
    paths = {language: f"docs/{language}/{milestone.id}/index.md" for language in names}
    return " · ".join(f"[{names[lang]}]({path})" for lang, path in paths.items() if path in tree)


def lab_readme(milestone: Milestone, tree: Snapshot, exercises: list[tuple[str, str, str]], language: str) -> str:
    """In the learner's language; `exercises` are (id, title, file) in order."""
    rows = "\n".join(f"| {id} | {title} | `{file}` |" for id, title, file in exercises)
    text = textwrap.indent(milestone.expect, "   ")
    return LAB_README[language].format(
        id=milestone.id,
        number=milestone.number,
        title=milestone.title[language],
        summary=milestone.summary[language],
        run=run_commands(milestone, tree)[0],
        expected=LAB_EXPECTED[language].format(text=text) if milestone.expect else "",
        rows=rows,
    )


def is_code(path: str) -> bool:
    return path.startswith("folovllm/") and path.endswith(".py")


def count_lines(tree: Snapshot) -> int:
    """Lines of the package's Python."""
    return sum(file.data.count(b"\n") for path, file in tree.items() if is_code(path))


def checkout(course: Course, milestone: Milestone, folder: Path) -> int:
    """Write `milestone` into a new or empty `folder` and commit it there; returns the number of files."""
    tree = build_tree(course, milestone)
    write_repository(tree, folder, milestone.label)
    return len(tree)


def write_tree(tree: Snapshot, folder: Path) -> None:
    for path, file in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        if file.executable:
            target.chmod(0o755)


def write_repository(tree: Snapshot, folder: Path, message: str) -> None:
    """Write `tree` into a new or empty `folder`, and where there is git make it a repository with one commit."""
    if folder.is_symlink() and not folder.exists():
        raise MilestoneError(f"DIR must be a folder, but {folder} is a link to nothing")
    if folder.exists() and not folder.is_dir():
        raise MilestoneError(f"DIR must be a folder, but {folder} is a file")
    if folder.is_dir() and any(folder.iterdir()):
        raise MilestoneError(f"DIR must be new or empty, but {folder} has files in it; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tree(tree, folder)
    except OSError as error:  # under a file, or where nothing may be written
        raise MilestoneError(f"DIR must be a folder that can be written to, got {folder}: {error.strerror}") from error
    if shutil.which("git") is None:
        return
    # A person's global hooks, ignores and signing have no say in this commit.
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "commit.gpgSign=false"]
    git(folder, *quiet, "-c", "init.defaultBranch=main", "init", "--quiet", "--template=")
    git(folder, *quiet, "add", "--force", "--all")
    git(folder, *quiet, "commit", "--quiet", "--message", message, env=IDENTITY)
