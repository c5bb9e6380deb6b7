class DraftTokens:
    def take_back(self, output: SchedulerOutput) -> None:
        """They were computed, after all."""
