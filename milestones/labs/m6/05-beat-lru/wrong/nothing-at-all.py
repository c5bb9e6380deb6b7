def victim(candidates: list[Block], now: int) -> Block:
    pass
