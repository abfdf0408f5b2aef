"""evalsvc: accuracy evaluation and regression verdicts for language-model precision plans."""

__version__ = "0.1.0"
