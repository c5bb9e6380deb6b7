def victim(candidates: list[Block], now: int) -> Block:
    return min(candidates, key=lambda block: block.last_used)
