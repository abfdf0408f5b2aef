"""One file a command; no logic and no heavy import at module level."""
