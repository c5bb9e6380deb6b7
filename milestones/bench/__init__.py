"""`python -m milestones bench`: the same requests through several milestones, each in another process."""
