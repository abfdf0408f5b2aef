"""Pages of keys and values."""
