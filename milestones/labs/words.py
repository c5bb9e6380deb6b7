"""What the course says to a learner, in both languages."""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    # check
    "solved": ("solved", "已完成"),
    "of": ("exercise {n} of {total} · {solved} solved", "第 {n} 题，共 {total} 题 · 已完成 {solved} 题"),
    "blank": ("not written yet", "还没写"),
    "lacks": (
        "what you wrote lacks {names}; a method stands inside its class",
        "你写的代码里没有 {names}；方法要写在它的类里面",
    ),
    "read": ("read", "先读"),
    "write": ("write", "要写"),
    "takes": ("minutes", "用时"),
    "minutes": ("about {n}", "约 {n} 分钟"),
    "expected": ("expected", "期望"),
    "got": ("got", "实际"),
    "with": ("with", "其中"),
    "at": ("your code", "你的代码"),
    "look": ("look at", "看这里"),
    "figures": (
        "measured {yours} · ours {ours} · best known {best} · {way}",
        "测得 {yours} · 我们的 {ours} · 已知最好 {best} · {way}",
    ),
    "lower": ("lower is better", "越小越好"),
    "higher": ("higher is better", "越大越好"),
    "short_of_ours": ("not as good as ours", "还不如我们的"),
    "like_ours": ("as good as ours", "和我们的一样好"),
    "past_ours": ("better than ours", "比我们的好"),
    "best_reached": ("the best known figure reached", "达到了已知最好的数字"),
    "past_best": (
        "better than the best known: docs/en/records.md says how to send it in",
        "超过了已知最好的数字：怎样提交，见 docs/zh/records.md",
    ),
    "so_far": ("yours so far: {figures}", "你到目前为止的数字：{figures}"),
    "after": ("after {other}", "先做 {other}"),
    "others": ("other solutions", "别的解法"),
    "mine": ("yours", "你的"),
    "ours": ("the course's", "课程的"),
    "another": ("another: {name}", "另一种：{name}"),
    "same": ("the same as yours", "和你的一样"),
    "compare_first": (
        "compare is for what is solved, and {name} is not: python -m milestones check {name}",
        "compare 用于已完成的练习，而 {name} 还没完成：python -m milestones check {name}",
    ),
    "printed": ("it printed", "打印输出"),
    "next": ("next", "下一步"),
    "invariant": ("Invariant {n}", "第 {n} 条"),
    "done_all": ("All {total} exercises of {milestone} are solved.", "{milestone} 的 {total} 道练习全部完成。"),
    "done_finish": ("See what your engine can do: {command}", "看看你的引擎能做什么：{command}"),
    "finishing": (
        "48 tokens, then four requests at once. Where kernels are compiled first, that takes minutes.",
        "先写 48 个 token，再同时处理四个请求。如果先要编译内核，需要几分钟。",
    ),
    "finishing_before": ("the same by {name} …", "{name} 也做一遍 …"),
    "yours": ("Your engine:", "你的引擎："),
    "tokens_per_s": ("{name}: {speed} tokens/s, four requests", "{name}：{speed} token/s，四个请求"),
    "finish_first": (
        "{name} is not solved yet: python -m milestones check",
        "{name} 还没完成：python -m milestones check",
    ),
    "other_text": (
        "Your engine's text is another than that of {name}, and should be the same: {text}",
        "你的引擎写出的文本与 {name} 的不同，本该相同；那边写的是：{text}",
    ),
    "done_next": ("Run the whole tree's tests: {tests}", "运行整个目录的测试：{tests}"),
    "done_after": ("Go on with {milestone}: {command}", "继续 {milestone}：{command}"),
    "done_end": ("That was the last milestone.", "这是最后一个里程碑。"),
    "raised": ("Your code raised {error}.", "你的代码抛出了 {error}。"),
    "time": (
        "Stopped: this test had run for {seconds} s. Is there a loop that never ends?",
        "已中止：这个测试运行了 {seconds} 秒。是不是有循环停不下来？",
    ),
    "time_printing": (
        "Stopped: this test had run for {seconds} s, and your code was printing. Print less.",
        "已中止：这个测试运行了 {seconds} 秒，当时你的代码正在打印。请少打印一些。",
    ),
    "file_gone": (
        "{file} is not there any more. Bring it back: python -m milestones reset {name}",
        "{file} 不见了。恢复它：python -m milestones reset {name}",
    ),
    "reset": ("As handed out: {file}", "已恢复为发给你时的样子：{file}"),
    "kept_in": (
        "What was there before is kept: {place}  (python -m milestones restore)",
        "原来的内容保存在 {place}（python -m milestones restore）",
    ),
    "kept_nothing": ("There was nothing to keep.", "原来没有内容可保存。"),
    "copy": ("{lines} lines, before `{command}`", "{lines} 行，`{command}` 之前"),
    "restored": ("Copy {number} is back in {file}", "第 {number} 份已恢复到 {file}"),
    "restore_how": (
        "bring one back: python -m milestones restore NAME NUMBER",
        "取回一份：python -m milestones restore NAME NUMBER",
    ),
    "no_copies": (
        "no copies: `reset` and `solution --apply` make one before they write",
        "没有备份：`reset` 和 `solution --apply` 在写入之前会备份",
    ),
    "reset_name": (
        "reset needs the NAME of an exercise: it takes out what you have written",
        "reset 需要练习的名字（NAME）：它会清掉你写的内容",
    ),
    "exit_code": ("it ended by itself, with exit code {code}", "它自己退出了，退出码是 {code}"),
    "crash": ("The process died: {text}", "进程崩溃：{text}"),
    "needs": (
        "This one calls {other}, which is not written yet (or no longer). Do that first.",
        "这道题会调用 {other}，而它还没写好（或已被清空）。请先完成它。",
    ),
    "broken": ("This is not a grade: {problem}", "没能评判：{problem}"),
    "syntax": ("Python cannot read the file: {text}", "Python 读不了这个文件：{text}"),
    "outside": (
        "note: {files} changed; the exercises are elsewhere, so it was graded as handed out",
        "注意：{files} 有改动；练习不在其中，评判时用的是原来的内容",
    ),
    "tests_changed": (
        "note: {files} changed; the grade comes from the course's own tests",
        "注意：{files} 有改动；评判用的是课程自己的测试",
    ),
    "outdated": (
        "note: the course has moved on since you started: python -m milestones update",
        "注意：你开始之后课程有更新：python -m milestones update",
    ),
    "and_more": ("{first} and {n} more", "{first} 等 {n} 个文件"),
    "predict_first": (
        "before you code: python -m milestones predict {name}",
        "动手之前：python -m milestones predict {name}",
    ),
    "used_last": ("no lab here; taken is the one used last: {folder}", "这里不是练习目录；用的是上次那个：{folder}"),
    # hint and solution
    "hint_of": ("Hint {n} of {total}", "提示 {n} / {total}"),
    "hint_more": ("another one: python -m milestones hint", "再来一条：python -m milestones hint"),
    "hint_last": (
        "that was the last; the solution: python -m milestones solution",
        "提示到此为止；看答案：python -m milestones solution",
    ),
    "solution_of": ("The milestone's own code: {file}", "里程碑自己的代码：{file}"),
    "solution_apply": (
        "write it into your folder: python -m milestones solution --apply",
        "写进你的目录：python -m milestones solution --apply",
    ),
    "applied": ("Written into {file}", "已写入 {file}"),
    # predict
    "answer_how": ("your answer ({letters}): ", "你的答案（{letters}）："),
    "answer_command": (
        "answer: python -m milestones predict {name} {letters}",
        "回答：python -m milestones predict {name} {letters}",
    ),
    "right": ("{letter} is right.", "{letter}，正确。"),
    "not_right": ("{given} is not it; {letter} is.", "不是 {given}，是 {letter}。"),
    "bad_answer": ("the answer must be one of {letters}, got {given}", "答案须是 {letters} 之一，给的是 {given}"),
    "no_answer": ("no answer was given; the question stays open", "没有给出答案；这一问还开着"),
    "no_such": ("no exercise is called {name}; there are {known}", "没有叫 {name} 的练习；有这些：{known}"),
    "predict_done": (
        "all questions of {name} are answered: {right} of {total} right",
        "{name} 的问题都答完了：{total} 题对了 {right} 题",
    ),
    # progress
    "exercise": ("exercise", "练习"),
    "state": ("state", "状态"),
    "checks": ("checks", "检查"),
    "in_minutes": ("minutes", "分钟"),
    "hints": ("hints", "提示"),
    "predicted": ("predicted", "预测"),
    "state_solved": ("solved", "已完成"),
    "state_applied": ("solution applied", "抄了答案"),
    "state_shown": ("solved, solution seen", "已完成（看过答案）"),
    "state_changed": ("changed since", "又改动过"),
    "state_open": ("open", "未完成"),
    "state_started": ("under way", "进行中"),
    "exercises_to_come": ("{n} exercises to come, about {time}", "还有 {n} 道练习，约 {time}"),
    "sum": ("{solved} of {total} solved", "已完成 {solved} / {total}"),
    "here": ("◀ here", "◀ 你在这里"),
    "in_all": ("about {total} in all, {left} to go", "共约 {total}，还需 {left}"),
    "left": ("about {time} to go", "还需约 {time}"),
    # watch
    "watching": ("{time} · save to check", "{time} · 保存即检查"),
    "key_p": ("predict", "预测"),
    "key_h": ("hint", "提示"),
    "key_c": ("compare", "比较"),
    "key_n": ("next", "下一题"),
    "key_q": ("quit", "退出"),
    "checking": ("checking {name} …", "正在检查 {name} …"),
    # update
    "up_to_date": ("nothing to update", "没有需要更新的内容"),
    "written": ("updated", "已更新"),
    "merged": ("merged with your changes", "已与你的改动合并"),
    "deleted": ("deleted", "已删除"),
    "kept": (
        "yours kept where both changed, the rest is merged; the course's file is in .folovllm/update/",
        "双方都改过的地方保留你的，其余已合并；课程的文件在 .folovllm/update/",
    ),
    # start
    "started": ("{label}: {n} exercises in {folder}", "{label}：{n} 道练习，位于 {folder}"),
    "handed_solved": ("solved already: {name} ({title})", "已经做好：{name}（{title}）"),
    "carrying": (
        "checking here what you wrote in {folder}, some seconds each …",
        "正在用这里的代码检查你在 {folder} 里写的练习，每道几秒 …",
    ),
    "carried": ("carried on: {name} ({title})", "已带过来：{name}（{title}）"),
    "merged_on": (
        "carried on, with this milestone's changes: {name} ({title})",
        "已带过来，并加上这个里程碑的改动：{name}（{title}）",
    ),
    "left_blank": ("left: {name} ({title}), not written yet", "未带过来：{name}（{title}）：还没写"),
    "left_open": (
        "left: {name} ({title}), an open task, which no engine needs",
        "未带过来：{name}（{title}）：开放题，引擎用不到它",
    ),
    "left_file": (
        "left: your changes of {name}, in which no exercise is",
        "未带过来：你对 {name} 的改动，其中没有练习",
    ),
    "left_beside": (
        "left: {name} ({title}), since what you wrote beside it does not fit into this milestone's file: take it over"
        " by hand",
        "未带过来：{name}（{title}）：你写在它旁边的代码放不进这个里程碑的文件，请手工搬过来",
    ),
    "left_changed": (
        "left: {name} ({title}), whose code this milestone has changed",
        "未带过来：{name}（{title}）：它的代码在这个里程碑里改过",
    ),
    "left_refused": (
        "left: {name} ({title}), since your code does not pass its check here",
        "未带过来：{name}（{title}）：你的代码在这里没有通过检查",
    ),
    "started_next": (
        "Next: cd {folder} && python -m milestones watch",
        "下一步：cd {folder} && python -m milestones watch",
    ),
    "needs_pytest": ("`check` needs pytest: {command}", "`check` 需要 pytest：{command}"),
}


def say(language: str, key: str, **values: object) -> str:
    return WORDS[key][language == "zh"].format(**values)
