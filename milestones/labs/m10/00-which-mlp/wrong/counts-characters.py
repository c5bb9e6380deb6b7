def block_of(name: str) -> str:
    part = name[len("model.layers.0.mlp.") :].partition(".")[0]
    return part if part in ("experts", "shared_expert") else "mlp"
