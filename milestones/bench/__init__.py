"""`python -m milestones bench`: the same requests through several milestones, each in a process of its own."""
