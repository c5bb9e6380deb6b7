"""Your own order of the waiting line. The course's judge lets the scheduler admit requests by it, and measures."""

from dataclasses import dataclass


@dataclass
class Waiting:
    """A request in line."""

    arrived: int  # the step
    lora: int  # its adapter


def order(waiting: list[Waiting], running: list[int], now: int) -> list[Waiting]:
    """The line of this step, from its front. waiting: by arrival; running: the adapter of each running request."""
    by_adapter: dict[int, list[Waiting]] = {}
    for each in waiting:
        by_adapter.setdefault(each.lora, []).append(each)
    oldest = next(iter(by_adapter), None)  # its adapter's turn has come, or those in the slots never leave
    is_late = bool(waiting) and now - waiting[0].arrived > 120

    def place(lora: int) -> tuple[bool, bool, int]:
        return not (is_late and lora == oldest), lora not in running, -len(by_adapter[lora])

    return [each for lora in sorted(by_adapter, key=place) for each in by_adapter[lora]]
