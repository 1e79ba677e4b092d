"""What happened, and what must survive a restart: request rows, homes, changed settings. No prompt text, ever."""
