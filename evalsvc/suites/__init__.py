"""What is asked: lm-eval tasks, tool-call cases, format cases."""
