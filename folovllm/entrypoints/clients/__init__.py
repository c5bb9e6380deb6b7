"""What programs that were written for vLLM expect of an engine, on top of the milestones' own classes."""
