"""From a config to an EngineCore: which components, and how large everything is."""
