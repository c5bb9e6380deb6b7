def choose(name: str, out: int, size: int) -> tuple[int, int]:
    # Found by a random search: a bit more or less here and there, as long as the loss falls.
    if name.startswith("embed"):
        return 4, 128
    layer, kind = int(name.split(".")[1]), name.split(".")[3][0]
    bits = {"d": "4433", "g": "4444", "u": "4333", "k": "5545", "o": "4434", "q": "5344", "v": "6676"}[kind][layer]
    wide = {"d": "1111", "g": "1111", "u": "1010", "k": "0110", "o": "0001", "q": "0111", "v": "0011"}[kind][layer]
    return int(bits), 128 if wide == "1" else 64
