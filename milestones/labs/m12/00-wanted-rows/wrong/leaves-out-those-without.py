class LoRAMapping:
    def take(self, rows):
        slots = self.slots[rows]
        return LoRAMapping(slots[slots >= 0])
