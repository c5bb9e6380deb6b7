def order(waiting: list[Waiting], running: list[int], now: int) -> list[Waiting]:
    return sorted(waiting, key=lambda each: now - each.arrived <= 120 and 1 + (each.lora not in running))
