"""Your own bits for each weight. The course's judge rounds the embedded model by them, and measures."""


def choose(name: str, out: int, size: int) -> tuple[int, int]:
    """(bits of a code, weights of a row that share a scale) for the weight [out, size] of this name."""
    for kind, bits in (("up_proj", 3), ("k_proj", 5), ("v_proj", 6)):
        if kind in name:
            return bits, 128
    return 4, 128
