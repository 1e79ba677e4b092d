"""What happened, and what must survive a restart: rows, time series, homes, changed settings. No prompt text, ever."""
