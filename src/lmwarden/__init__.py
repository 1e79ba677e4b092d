"""LM Warden: keeps every agent conversation on the vLLM replica that has read it before."""

__version__ = "0.1.0"
