def check_int(name: str, value: object, minimum: int | None = None, must: str = "", way_out: str = "") -> None:
    match value, minimum:
        case int(), None if not isinstance(value, bool):
            return
        case int(), int() if not isinstance(value, bool):
            limits = ["be non-negative", "be positive"]
            limit = limits[minimum] if 0 <= minimum < len(limits) else f"be at least {minimum}"
            if value < minimum:
                raise wrong(name, must if must else limit, value, way_out)
        case _:
            raise ValueError(f"{name} must be an integer, got {describe(value)} ({type(value).__name__})")


def check_float(name: str, value: object) -> float:
    match value:
        case bool():
            pass
        case float() | int() if -FLOAT32_MAX <= value <= FLOAT32_MAX:
            return value
        case float() if value != value or value in (math.inf, -math.inf):
            raise ValueError(f"{name} must be a finite number, got {value}")
        case float() | int():
            raise wrong(name, f"be at most {FLOAT32_MAX} in size, what float32 can hold", value)
    raise ValueError(f"{name} must be a number, got {describe(value)} ({type(value).__name__})")
