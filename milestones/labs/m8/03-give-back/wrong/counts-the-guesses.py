class SpeculativeScheduler:
    def advance(self, output: SchedulerOutput) -> None:
        super().advance(output)
