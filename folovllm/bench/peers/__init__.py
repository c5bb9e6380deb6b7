"""Those the engine is compared with: registry.py has them by name, and workers/ what runs in their own processes."""
