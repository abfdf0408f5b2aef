"""Arithmetic on tensors. Imports nothing of ours."""
