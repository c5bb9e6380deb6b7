"""The course tool: every milestone of FoloVLLM out of one working tree.

`folovllm/` at the root is the newest milestone. An older version of a file is kept only where a later
milestone changed it, under `milestones/mK/`. From these two and each `milestone.toml` this package
rebuilds any milestone. Run `python -m milestones`.
"""
