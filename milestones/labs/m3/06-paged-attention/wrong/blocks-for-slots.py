class Plan:
    def _slots(self, seqs: torch.Tensor, longest: int) -> torch.Tensor:
        size = self._block_size
        tables = self._metadata.block_tables[:, : -(-longest // size)].index_select(0, seqs).long()
        slots = tables[:, :, None] + torch.arange(size, device=tables.device)
        return slots.view(len(seqs), -1)[:, :longest]
