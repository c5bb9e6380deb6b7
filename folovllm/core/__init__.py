"""Decisions about requests, in pure Python: no torch, no model."""
