class Preempter:
    def _swaps(self, request: Request) -> bool:
        if self.mode == "auto":
            return len(request.get_seqs()) > 1
        return self.mode == "swap"
