def order(waiting: list[Waiting], running: list[int], now: int) -> list[Waiting]:
    def place(each):
        return each.lora not in running, -sum(other.lora == each.lora for other in waiting), each.lora

    return sorted(waiting, key=place)
