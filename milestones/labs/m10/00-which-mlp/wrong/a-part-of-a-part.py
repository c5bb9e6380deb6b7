def block_of(name: str) -> str:
    return next((block for block in ("experts", "shared_expert") if block in name), "mlp")
