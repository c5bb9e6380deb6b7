def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    text = ",".join(map(str, token_ids))
    for size in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        tail = ",".join(map(str, token_ids[-size:]))
        place = text.rfind(tail, 0, len(text) - 1)
        if place >= 0:
            behind = text[place + len(tail) :].lstrip(",")
            return [int(number) for number in behind.split(",")[:count] if number]
    return []
