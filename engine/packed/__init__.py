"""Matrices in the packed forms of the weights formats: what a device would hold."""
