def order(waiting: list[Waiting], running: list[int], now: int) -> list[Waiting]:
    return sorted(waiting, key=lambda each: each.lora not in running)
