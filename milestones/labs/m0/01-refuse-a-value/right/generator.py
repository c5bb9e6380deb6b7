def check_int(name: str, value: object, minimum: int | None = None, must: str = "", way_out: str = "") -> None:
    def faults():
        if not isinstance(value, int) or value is True or value is False:
            yield ValueError(f"{name} must be an integer, got {describe(value)} ({type(value).__name__})")
        if minimum is not None and min(value, minimum) != minimum:
            default = ["non-negative", "positive", f"at least {minimum}"][
                max(0, min(2, minimum)) if minimum >= 0 else 2
            ]
            yield wrong(name, must or "be " + default, value, way_out)

    for fault in faults():
        raise fault


def check_float(name: str, value: object) -> float:
    if type(value) is bool or not issubclass(type(value), (int, float)):
        raise ValueError(name + " must be a number, got " + describe(value) + " (" + type(value).__name__ + ")")
    if isinstance(value, float) and value - value != 0:
        raise ValueError(f"{name} must be a finite number, got {describe(value)}")
    if max(value, -value) > FLOAT32_MAX:
        raise wrong(name, "be at most 3.4e+38 in size, what float32 can hold", value)
    return value
