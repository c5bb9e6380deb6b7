"""Measuring the engine: each benchmark is one module that returns a Report; `folovllm bench` runs them.

vLLM: benchmarks/
"""
