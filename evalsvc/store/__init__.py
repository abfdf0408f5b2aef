"""The database: every run, arm, item, sample and score. Imports neither engine nor suites."""
