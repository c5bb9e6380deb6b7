"""The engine without its model: the real scheduler and cache, and a clock that a cost model moves. vLLM: none"""
