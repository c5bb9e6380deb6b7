def check_int(name: str, value: object, minimum: int | None = None, must: str = "", way_out: str = "") -> None:
    if type(value) is not int:
        raise ValueError(f"{name} must be an integer, got {describe(value)} ({type(value).__name__})")
    if minimum is not None and value < minimum:
        default = {0: "be non-negative", 1: "be positive"}.get(minimum, f"be at least {minimum}")
        raise wrong(name, must or default, value, way_out)
