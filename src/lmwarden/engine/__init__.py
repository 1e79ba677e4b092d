"""A vLLM server as we see it: what it serves, what it reports, whether it lives."""
