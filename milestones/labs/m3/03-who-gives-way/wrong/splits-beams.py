def choose_victims(newest: Request, needy: Request) -> list[Sequence]:
    running = newest.get_seqs(SequenceStatus.RUNNING)
    return running[-1:] if newest is needy else running
