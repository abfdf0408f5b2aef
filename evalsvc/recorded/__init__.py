"""Evidence that others wrote, as recorded arms: files in, samples out. No torch, no lm-eval."""
