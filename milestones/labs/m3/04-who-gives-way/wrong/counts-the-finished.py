class Preempter:
    def _swaps(self, request: Request) -> bool:
        if self.mode == "auto":
            return request.num_unmade + len(request.get_seqs()) > 1
        return self.mode == "swap"
