"""Files to named tensors."""
