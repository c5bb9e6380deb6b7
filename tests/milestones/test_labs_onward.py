"""From one milestone to the next: what was solved goes along, and the end shows the learner's own engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milestones import cli
from milestones.labs import onward
from milestones.labs.onward import Shown
from milestones.sources import IDENTITY, git
from tests.milestones.labs_support import FOLDER, LAB, lab_files

SOLVED = "return x + x  # mine"
ENGINE = '''\
from folovllm.base import Base


class Engine(Base):
    def triple(self, x: int) -> int:
        """Thrice `x`."""
        return self.double(x) + x
'''


def files(**changes: str) -> dict[str, str]:
    """The tiny course with an exercise in m0 and one in m1."""
    second = {
        path: text.replace("Base().double", "Engine().triple").replace("import Base", "import Engine")
        .replace("folovllm.base", "folovllm.engine").replace("folovllm/base.py", "folovllm/engine.py")
        .replace("Base.double", "Engine.triple").replace("class Base", "class Engine")
        .replace("def double", "def triple")
        .replace("x), 6", "x), 9").replace('"squares": 9', '"squares": 27').replace("-1), -2", "-1), -3")
        .replace("return x * x", "return x * x * x").replace("return x + 2", "return x + 3")
        for path, text in LAB.items()
    }  # fmt: skip
    return {**lab_files(), **{f"{FOLDER.replace('m0', 'm1')}/{path}": text for path, text in second.items()},
            "folovllm/engine.py": ENGINE, **changes}  # fmt: skip


def later(base: str, newer: str) -> dict[str, str]:
    """m1 has another base.py."""
    toml = files()["milestones/m1/milestone.toml"].replace('changes = ["', 'changes = ["folovllm/base.py", "')
    return {"milestones/m0/folovllm/base.py": base, "folovllm/base.py": newer, "milestones/m1/milestone.toml": toml}


def go_on(folder: Path, body: str) -> None:
    """m0 solved with this body, and m1 begun from it."""
    assert cli.main(["start", "m0", "m0-lab", "--lang", "en"]) == 0
    write(folder / "m0-lab", "base.py", body)
    assert cli.main(["check"]) == 0
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0


@pytest.fixture
def make_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(**changes: str) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        root = tmp_path / "clone"
        for path, text in files(**changes).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        git(root, "init", "--quiet", "--template=")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", "all", env=IDENTITY)
        monkeypatch.setattr(cli, "repository_root", lambda: root)
        monkeypatch.chdir(tmp_path)
        return root

    return make


def write(lab: Path, file: str, body: str) -> None:
    path = lab / "folovllm" / file
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if "raise NotImplementedError" in line)
    path.write_text("\n".join([*lines[: at - 1], f"        {body}", *lines[at + 1 :]]) + "\n", encoding="utf-8")


def solve_m0(folder: Path) -> None:
    assert cli.main(["start", "m0", str(folder), "--lang", "en"]) == 0
    write(folder, "base.py", SOLVED)
    assert cli.main(["check"]) == 0


def test_what_was_solved_is_carried_on_and_counts_as_handed_out(make_clone, tmp_path, capsys) -> None:
    make_clone()
    solve_m0(tmp_path / "m0-lab")
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0
    assert "carried on: m0/01-twice (Twice)" in capsys.readouterr().out
    assert SOLVED in (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")
    log = git(tmp_path / "m1-lab", "log", "--format=%s").decode().splitlines()
    assert log == ["What was solved in m0", "M1: Engine: exercises"]
    write(tmp_path / "m1-lab", "engine.py", "return self.double(x) + x")
    assert cli.main(["check"]) == 0
    seen = capsys.readouterr().out
    assert "changed" not in seen  # its own base.py is no surprise


def test_what_the_next_milestone_has_changed_stays_as_it_is_there(make_clone, tmp_path, capsys) -> None:
    make_clone(
        **later(
            lab_files()["folovllm/base.py"], lab_files()["folovllm/base.py"].replace("return x + x", "return 2 * x")
        )
    )
    solve_m0(tmp_path / "m0-lab")
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0
    assert "left: m0/01-twice" in capsys.readouterr().out
    assert "return 2 * x" in (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")


HELPED = "return self.sum_of(x, x)\n\n    def sum_of(self, x: int, y: int) -> int:\n        return x + y"


@pytest.mark.parametrize("has_place", [True, False])
def test_a_helper_beside_an_exercise_goes_along_or_is_named(has_place, make_clone, tmp_path, capsys) -> None:
    base = lab_files()["folovllm/base.py"]
    other = "    def halve(self, x: int) -> int:\n        return x // 2\n"
    newer = f"class Other:\n{other}\n\n{base}" if has_place else f"{base}\n{other}"
    make_clone(**later(base, newer))
    go_on(tmp_path, HELPED)
    said = "carried on: m0/01-twice" if has_place else "left: m0/01-twice (Twice), since what you wrote beside it"
    assert said in capsys.readouterr().out
    assert ("def sum_of" in (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")) == has_place


LONG = "        first = x\n        other = x\n        return first + other\n"


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        ("first = 0 + x\n        other = x\n        return first + other", "carried on, with"),
        ("return 2 * x", "left: "),
    ],
)
def test_what_the_next_milestone_has_changed_is_merged_where_it_was_not_written_anew(
    mine, said, make_clone, tmp_path, capsys
) -> None:
    base = lab_files()["folovllm/base.py"].replace("        return x + x\n", LONG)
    make_clone(**later(base, base.replace("return first + other\n", "result = first + other\n        return result\n")))
    go_on(tmp_path, mine)
    assert said in capsys.readouterr().out
    text = (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")
    assert ("return result" in text, "first = 0 + x" in text) == (True, said != "left: ")


def test_what_the_judge_cannot_judge_in_the_next_milestone_is_not_said_to_be_wrong(
    make_clone, tmp_path, capsys
) -> None:
    base = lab_files()["folovllm/base.py"]
    made_otherwise = "class Base:\n    def __init__(self, of: int) -> None:\n        self.of = of\n\n"
    make_clone(**later(base, base.replace("class Base:\n", made_otherwise)))
    solve_m0(tmp_path / "m0-lab")
    capsys.readouterr()
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0
    assert "left: m0/01-twice (Twice), whose code this milestone has changed" in capsys.readouterr().out
    assert SOLVED not in (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")


def test_the_next_milestone_speaks_the_language_of_the_one_before(make_clone, tmp_path, capsys) -> None:
    make_clone()
    assert cli.main(["start", "m0", "m0-lab", "--lang", "zh"]) == 0
    write(tmp_path / "m0-lab", "base.py", SOLVED)
    assert cli.main(["check"]) == 0
    assert cli.main(["reset"]) == 2
    assert "reset 需要练习的名字" in capsys.readouterr().err
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab"]) == 0
    assert "已带过来：m0/01-twice（两倍）" in capsys.readouterr().out
    assert cli.main(["start", "m1", "m1-en", "--from", "m0-lab", "--lang", "en"]) == 0
    assert "carried on: m0/01-twice (Twice)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (None, "left: m0/01-twice (Twice), not written yet"),
        (SOLVED, "carried on: m0/01-twice (Twice)"),
        ("return x", "left: m0/01-twice (Twice), since your code does not pass its check here"),
    ],
)
def test_what_was_written_is_carried_though_it_was_never_checked(mine, said, make_clone, tmp_path, capsys) -> None:
    make_clone()
    assert cli.main(["start", "m0", "m0-lab", "--lang", "en"]) == 0
    if mine:
        write(tmp_path / "m0-lab", "base.py", mine)
    (tmp_path / "m0-lab/folovllm/__init__.py").write_text("MINE = 1\n", encoding="utf-8")
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0
    out = capsys.readouterr().out
    assert (said in out, "left: your changes of folovllm/__init__.py" in out) == (True, True)
    assert (SOLVED in (tmp_path / "m1-lab/folovllm/base.py").read_text(encoding="utf-8")) is (mine == SOLVED)


def test_only_from_an_earlier_milestone(make_clone, tmp_path, capsys) -> None:
    make_clone()
    assert cli.main(["start", "m0", "m0-lab", "--lang", "en"]) == 0
    assert cli.main(["start", "m0", "again", "--from", "m0-lab"]) == 2
    assert "--from must be of a milestone before m0, got m0" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_finish_waits_for_the_last_exercise_and_then_says_what_is_next(make_clone, tmp_path, capsys) -> None:
    make_clone()
    assert cli.main(["start", "m0", "m0-lab", "--lang", "en"]) == 0
    assert cli.main(["finish"]) == 2
    assert "m0/01-twice is not solved yet" in capsys.readouterr().err
    write(tmp_path / "m0-lab", "base.py", SOLVED)
    assert cli.main(["check"]) == 0
    assert "python -m milestones finish" not in capsys.readouterr().out  # m0 is no engine, nothing would be shown
    assert cli.main(["finish"]) == 0
    assert "python -m milestones start m1" in " ".join(capsys.readouterr().out.split())


def test_finish_shows_the_learners_engine_beside_the_one_before(make_clone, tmp_path, capsys, monkeypatch) -> None:
    make_clone()
    solve_m0(tmp_path / "m0-lab")
    assert cli.main(["start", "m1", "m1-lab", "--from", "m0-lab", "--lang", "en"]) == 0
    write(tmp_path / "m1-lab", "engine.py", "return self.double(x) + x")
    assert cli.main(["check"]) == 0
    llm = (
        "import os\n\nclass SamplingParams:\n    def __init__(self, **options): pass\n\n\n"
        "class LLM:\n    def __init__(self, **options): self.engine = self\n\n"
        "    def generate(self, prompts, params, use_tqdm): print('some progress')\n\n"
        "    def generate_stream(self, prompt, params):\n"
        "        for text in (' in ', os.path.basename(os.getcwd())):\n"
        "            yield type('Output', (), {'outputs': [type('Text', (), {'text': text})]})\n"
    )
    (tmp_path / "m1-lab/folovllm/__init__.py").write_text(llm, encoding="utf-8")
    pieces: list[str] = []
    shown = onward.generate(tmp_path / "m1-lab", pieces.append)
    assert (shown.text, pieces) == (" in m1-lab", [" in ", "m1-lab"])
    assert shown.tokens_per_s > 0
    monkeypatch.setattr("milestones.labs.commands.GENERATES", "folovllm/__init__.py")
    monkeypatch.setattr("milestones.labs.commands.generate_of", lambda course, number: Shown(" in m1-lab", 7.0))
    capsys.readouterr()
    assert cli.main(["finish"]) == 0
    out = capsys.readouterr().out
    assert "Your engine:  Once upon a time in m1-lab" in out
    assert "m0: 7 tokens/s, four requests" in out


def test_before_the_first_start_progress_shows_what_is_to_come(make_clone, capsys) -> None:
    make_clone()
    assert cli.main(["progress", "--lang", "en"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "M0 Ground 1 exercises to come, about 15 minutes" in out
    assert "M1 Engine 1 exercises to come, about 15 minutes" in out
    assert "about 30 minutes in all, 30 minutes to go" in out
    assert out.endswith("next python -m milestones start m0 ../m0-lab")


def test_progress_shows_the_whole_way(make_clone, tmp_path, capsys) -> None:
    make_clone()
    solve_m0(tmp_path / "m0-lab")
    capsys.readouterr()
    assert cli.main(["progress"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "M1 Engine 1 exercises to come" in out
    assert "about 30 minutes in all, 15 minutes to go" in out
    assert "next python -m milestones start m1" in out


def test_progress_is_where_one_stands_and_not_where_the_newest_folder_is(
    make_clone, tmp_path, capsys, monkeypatch
) -> None:
    make_clone()
    for milestone in ("m0", "m1"):
        assert cli.main(["start", milestone, f"{milestone}-lab", "--lang", "en"]) == 0
    monkeypatch.chdir(tmp_path / "m0-lab/folovllm")
    capsys.readouterr()
    assert cli.main(["progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "◀ here" in line] == ["M0"]
    assert next(line for line in lines if line.startswith("01 ")).split()[1:3] == ["Twice", "open"]
    assert lines[-1] == "next  python -m milestones watch   (Twice)"


def test_check_all_grades_all_and_counts(make_clone, tmp_path, capsys) -> None:
    first = FOLDER.replace("m0", "m1")
    again = {path.replace("01-twice", "02-thrice"): text.replace("triple", "thrice") for path, text in files().items()
             if path.startswith(first)}  # fmt: skip
    method = ENGINE[ENGINE.index("    def triple") :]
    make_clone(**again, **{"folovllm/engine.py": f"{ENGINE}\n{method.replace('triple', 'thrice')}"})
    assert cli.main(["start", "m1", "m1-lab", "--lang", "en"]) == 0
    capsys.readouterr()
    assert cli.main(["check", "--all"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["· 01 Twice  not written yet", "· 02 Twice  not written yet"]
    write(tmp_path / "m1-lab", "engine.py", "return x")
    write(tmp_path / "m1-lab", "engine.py", "return self.double(x) + x")
    assert cli.main(["check", "--all"]) == 1
    assert capsys.readouterr().out == "✘ 01 Twice  Invariant 1\n✔ 02 Twice  solved\n\n1 of 2 solved\n"


def test_a_start_in_the_middle_has_what_comes_before_solved(make_clone, tmp_path, capsys) -> None:
    first = FOLDER.replace("m0", "m1")
    again = {path.replace("01-twice", "02-thrice"): text.replace("triple", "thrice") for path, text in files().items()
             if path.startswith(first)}  # fmt: skip
    method = ENGINE[ENGINE.index("    def triple") :]
    make_clone(**again, **{"folovllm/engine.py": f"{ENGINE}\n{method.replace('triple', 'thrice')}"})
    assert cli.main(["start", "m1", "m1-lab", "--at", "thrice", "--lang", "en"]) == 0
    assert "solved already: m1/01-twice" in capsys.readouterr().out
    engine = (tmp_path / "m1-lab/folovllm/engine.py").read_text(encoding="utf-8")
    assert engine.count("return self.double(x) + x") == 1
    assert git(tmp_path / "m1-lab", "status", "--short") == b""
    write(tmp_path / "m1-lab", "engine.py", "return self.double(x) + x")
    assert cli.main(["check"]) == 0  # the second one, since the first is solved
    capsys.readouterr()
    assert cli.main(["progress"]) == 0
    assert "2 of 2 solved" in capsys.readouterr().out
    assert cli.main(["start", "m1", "nowhere", "--at", "fourth", "--lang", "en"]) == 2
    assert "no exercise is called 'fourth'" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_what_was_written_in_the_pages_is_carried_on(make_clone, tmp_path, capsys) -> None:
    """What is solved of the milestones before, and what can be read of the folder's own; a helper comes along."""
    make_clone()
    double = "class Base:\n    def double(self, x: int) -> int:\n        return x + x  # mine\n"
    triple = "class Engine:\n    def triple(self, x: int) -> int:\n        return thrice(x)\n\n\n"
    triple += "def thrice(x):\n    return 3 * x\n"
    saved = {"m0/01-twice": {"text": double, "solved": True}, "m1/01-twice": {"text": triple, "solved": False}}
    (tmp_path / "saved.json").write_text(json.dumps({"exercises": saved}), encoding="utf-8")
    assert cli.main(["start", "m1", "m1-lab", "--from", "saved.json", "--lang", "en"]) == 0
    seen = capsys.readouterr().out
    assert ("carried on: m0/01-twice" in seen, "carried on: m1/01-twice" in seen) == (True, True)
    assert "return 3 * x" in (tmp_path / "m1-lab/folovllm/engine.py").read_text(encoding="utf-8")
    assert cli.main(["check"]) == 0

    (tmp_path / "saved.json").write_text("[]", encoding="utf-8")
    assert cli.main(["start", "m1", "m1-again", "--from", "saved.json"]) == 2
    assert "--from must be a folder, or what the pages' `Take along` saved" in capsys.readouterr().err
