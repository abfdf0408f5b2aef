"""The statistics: pure functions of counts and arrays. Imports nothing of ours, numpy and scipy only."""
