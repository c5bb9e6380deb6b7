"""The kit for a maintainer who has a GPU for some minutes: one command tests and measures all of the CUDA side.

    python -m workshop.gpu_kit              (`make gpu`)          a CUDA device, 9.7 minutes at most, no network
    python3 -m workshop.gpu_kit --minutes 9.7 --out DIR           the same, on a machine that has only Python
    python -m workshop.gpu_kit --device cpu --tiny                the same parts rehearsed without a GPU

    parts.py ─▶ process.py ─▶ gpu.json ─▶ page.py
    what, and   each in a                 gpu.md, for people
    how long    process

A part that fails, hangs or cannot run costs its result and nothing else: it is ended with its children when its
time is over, and both files are written after every part. It runs from the source tree.
"""
