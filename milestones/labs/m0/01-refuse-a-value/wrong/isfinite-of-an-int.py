def check_float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {describe(value)} ({type(value).__name__})")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    if abs(value) > FLOAT32_MAX:
        raise wrong(name, f"be at most {FLOAT32_MAX} in size, what float32 can hold", value)
    return value
