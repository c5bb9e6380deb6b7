"""Several engines behind one server: replicas on Ray, and a router in front of them. vLLM: v1/engine/core_client.py"""
