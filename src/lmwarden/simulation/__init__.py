"""A simulated vLLM: prefix cache, scheduler, step times. Behind HTTP (server.py) and in virtual time (virtual.py)."""
