"""What happened: one row per request in one SQLite file. No prompt text, ever."""
