"""Those the engine is compared with. registry.py finds each file that has a PEERS; no other file names it."""
