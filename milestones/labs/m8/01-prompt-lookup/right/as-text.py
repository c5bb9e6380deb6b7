def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    text = "".join(map(chr, token_ids))
    for size in range(longest, shortest - 1, -1):
        place = text.rfind(text[-size:], 0, len(text) - 1) if size < len(text) else -1
        if place >= 0:
            return [ord(letter) for letter in text[place + size : place + size + count]]
    return []
