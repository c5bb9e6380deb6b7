def check_float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {describe(value)} ({type(value).__name__})")
    if value == math.inf or value == -math.inf:
        raise ValueError(f"{name} must be a finite number, got {value}")
    if value < -FLOAT32_MAX or value > FLOAT32_MAX:
        raise wrong(name, f"be at most {FLOAT32_MAX} in size", value)
    return value
