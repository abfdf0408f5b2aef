"""Scheduled executions of experiments: planned, queued, worked off, and told about when something turns."""
