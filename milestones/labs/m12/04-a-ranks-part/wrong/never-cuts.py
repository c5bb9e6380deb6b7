class LoRALayers:
    def _part_of(self, name, pair):
        return pair.a.float(), pair.b.float() * pair.scale
