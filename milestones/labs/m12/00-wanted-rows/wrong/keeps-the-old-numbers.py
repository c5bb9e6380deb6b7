class LoRAMapping:
    def take(self, rows):
        return LoRAMapping(rows)
