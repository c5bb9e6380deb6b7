"""Small helpers that know nothing of the engine: checks, ids, seeds, devices, memory, logging."""
