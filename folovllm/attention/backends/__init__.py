"""One file per way of computing attention."""
