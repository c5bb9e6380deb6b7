def order(waiting: list[Waiting], running: list[int], now: int) -> list[Waiting]:
    queues: dict[int, list[Waiting]] = {}
    for each in waiting:
        queues.setdefault(each.lora, []).append(each)

    def place(lora: int) -> tuple[int, int]:
        age = now - queues[lora][0].arrived
        if age > 140:
            return 0, -age
        return (1, running.count(lora)) if lora in running else (2, -len(queues[lora]) * (age + 1))

    return [each for lora in sorted(queues, key=place) for each in queues[lora]]
