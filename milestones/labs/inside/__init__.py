"""Files that are copied beside an exercise's judge, into a process that sees the learner's tree and nothing else of
this repository. They import nothing of `milestones`.
"""
