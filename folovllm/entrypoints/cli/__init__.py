"""The `folovllm` command: one module per command, put together in main.py. vLLM: entrypoints/cli/"""
