class Request:
    def is_finished(self) -> bool:
        return self.first_seq().is_finished()
