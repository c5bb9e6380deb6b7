def victim(candidates: list[Block], now: int) -> Block:
    return min(candidates, key=lambda block: block.uses / (now - block.last_used + 1.1) ** 2)
