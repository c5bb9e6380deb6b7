"""The benchmarks that only the makers of the engine need: `python -m workshop.bench KIND`.

`folovllm bench` is there as well, with more peers beside it.
"""
