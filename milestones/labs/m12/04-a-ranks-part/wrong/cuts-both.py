class LoRALayers:
    def _part_of(self, name, pair):
        a, b = pair.a.float(), pair.b.float() * pair.scale
        if self.shard is None:
            return a, b
        mine, _ = self.shard.cut(name.rpartition(".")[2])
        if name.rpartition(".")[2] in ROWS:
            return a[:, mine.start : mine.stop], b[: len(mine)]
        return a[:, : len(mine)], b[mine.start : mine.stop]
