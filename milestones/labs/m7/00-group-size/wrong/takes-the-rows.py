class Codes:
    @property
    def group_size(self) -> int:
        return self.values.shape[0] // self.scale.shape[1]
