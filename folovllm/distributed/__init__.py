"""The ranks of a tensor-parallel engine: how they find one another, and how they add up what each has computed."""
