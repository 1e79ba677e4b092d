"""Who may ask: API keys, and the secret of this installation."""
