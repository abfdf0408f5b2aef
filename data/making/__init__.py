"""Generators of the shipped cases."""
