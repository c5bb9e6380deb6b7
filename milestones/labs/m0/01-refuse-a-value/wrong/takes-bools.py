def check_int(name: str, value: object, minimum: int | None = None, must: str = "", way_out: str = "") -> None:
    if not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {describe(value)} ({type(value).__name__})")
    if minimum is not None and value < minimum:
        default = {0: "be non-negative", 1: "be positive"}.get(minimum, f"be at least {minimum}")
        raise wrong(name, must or default, value, way_out)


def check_float(name: str, value: object) -> float:
    if not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {describe(value)} ({type(value).__name__})")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    if abs(value) > FLOAT32_MAX:
        raise wrong(name, f"be at most {FLOAT32_MAX} in size", value)
    return value
