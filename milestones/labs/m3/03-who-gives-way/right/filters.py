def choose_victims(newest: Request, needy: Request) -> list[Sequence]:
    victims = [seq for seq in newest.sequences.values() if seq.status.name == "RUNNING"]
    if needy.request_id != newest.request_id or needy.sampling_params.use_beam_search:
        return victims
    while len(victims) > 1:
        del victims[0]
    return victims


class Preempter:
    def _swaps(self, request: Request) -> bool:
        unfinished = [None for seq in request.sequences.values() if not seq.is_finished()]
        return {"swap": True, "recompute": False, "auto": bool(unfinished[1:])}[self.mode]
