def block_of(name: str) -> str:
    return "experts" if ".experts." in f"{name}." or ".shared_expert." in f"{name}." else "mlp"
