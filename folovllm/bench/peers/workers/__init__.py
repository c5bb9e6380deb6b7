"""What runs in a peer's own environment, where neither folovllm nor torch need be: run.py starts, *_engine.py answer.

vLLM: none
"""
