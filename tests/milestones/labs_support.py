"""The tiny course with an exercise in m0: write Base.double."""

from __future__ import annotations

from pathlib import Path

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises
from milestones.sources import File
from tests.milestones.conftest import FILES, make_course

BASE = '''\
class Base:
    def double(self, x: int) -> int:
        """Twice `x`."""
        return x + x
'''
EN = """\
# Twice

Why one doubles.

## Task

1. `double(x)` is twice `x`.
2. A negative number is one too.

Nothing else.

## Hints

1. Think.
2. Add.
3. ```python
   return x + x
   ```

## Predict

### What is twice 3?

a. 5
b. 6

Answer: b. 3 + 3.

## Mistakes

### squares

That is the square.

### adds-two

That is two more, not twice as much.
"""
ZH = """\
# 两倍

为什么要翻倍。

## 任务

1. `double(x)` 是 `x` 的两倍。
2. 负数也一样。

## 提示

1. 想。
2. 加。
3. `x + x`

## 预测

### 3 的两倍是多少？

a. 5
b. 6

答案：b。3 + 3。

## 常见错误

### squares

这是平方。

### adds-two

这是加二，不是两倍。
"""
JUDGE = """\
from folovllm.base import Base
from lab_judge import expect, invariant


@invariant(1)
def test_three():
    x = 3
    expect(Base().double(x), 6)


@invariant(2)
def test_negative():
    expect(Base().double(-1), -2)
"""
LAB = {
    "exercise.toml": (
        'file = "folovllm/base.py"\nfunctions = ["Base.double"]\nnote = "m0/index.md"\nminutes = 5\nseconds = 60\n'
    ),
    "en.md": EN,
    "zh.md": ZH,
    "judge.py": JUDGE,
    "mistakes.json": '{"squares": ["test_three", "6", "9"], "adds-two": ["test_three", "6", "5"]}',
    "wrong/squares.py": "class Base:\n    def double(self, x: int) -> int:\n        return x * x\n",
    "wrong/adds-two.py": "class Base:\n    def double(self, x: int) -> int:\n        return x + 2\n",
}
FOLDER = "milestones/labs/m0/01-twice"
WAY = {
    "docs/way.toml": 'm0 = ["m0/twice.md"]\nm1 = ["m1/thrice.md"]\n',
    "docs/en/m0/twice.md": "# Twice\n\n<!-- exercise m0/01-twice -->\n<!-- end -->\n",
    "docs/en/m1/index.md": "# Engine\n",
    "docs/en/m1/thrice.md": "# Thrice\n\n<!-- exercise m1/01-twice -->\n<!-- end -->\n",
}
# The same as an open task: as large as possible, and 9 for 3 is not enough.
OPEN = {
    "exercise.toml": LAB["exercise.toml"].replace("base.py", "mine/base.py") + "figure = { ours = 12, best = 30 }\n",
    "judge.py": JUDGE.partition("\n\n\n")[0]
    .replace("folovllm.base", "folovllm.mine.base")
    .replace("expect,", "measure,")
    + """


@invariant(1)
def test_small():
    measure(Base().double(3), at_least=10)


@invariant(2)
def test_large():
    measure(Base().double(4), at_least=12)
""",
    "own.py": "class Base:\n    def double(self, x: int) -> int:\n        return 12\n",
    "right/best.py": "class Base:\n    def double(self, x: int) -> int:\n        return 30\n",
    "mistakes.json": '{"squares": ["test_small", "bound", "9"], "adds-two": ["test_small", "bound", "5"]}',
}


def lab_files(**changes: str | None) -> dict[str, str]:
    """The tiny course's files with the exercise; `changes` replace files of the exercise, or with None drop them."""
    lab = {f"{FOLDER}/{path}": text for path, text in {**LAB, **changes}.items() if text is not None}
    return {**FILES, "folovllm/base.py": BASE, **WAY, **lab}


def lab_course(**changes: str | None) -> Course:
    return make_course(**lab_files(**changes))


def exercise(**changes: str | None) -> Exercise:
    (found,) = load_exercises(lab_course(**changes).snapshot, 0)
    return found


def write_package(folder: Path, base: str = BASE) -> Path:
    """The tree of m0 as far as grading needs it."""
    for path, text in {"folovllm/__init__.py": "VERSION = 0\n", "folovllm/base.py": base}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def snapshot(files: dict[str, str]) -> dict[str, File]:
    return {path: File(text.encode()) for path, text in files.items()}
