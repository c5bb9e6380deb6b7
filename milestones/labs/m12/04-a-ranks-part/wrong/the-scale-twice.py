class LoRALayers:
    def _part_of(self, name, pair):
        a, b = pair.a.float() * pair.scale, pair.b.float() * pair.scale
        if self.shard is None:
            return a, b
        if name.rpartition(".")[2] in ROWS:
            return a[cut_tensor(f"{name}.weight", tuple(a.shape), self.shard)], b
        return a, b[cut_tensor(f"{name}.weight", tuple(b.shape), self.shard)]
