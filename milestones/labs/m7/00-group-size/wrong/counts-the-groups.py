class Codes:
    @property
    def group_size(self) -> int:
        return self.scale.shape[1]
