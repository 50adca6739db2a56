"""Measurements of speed and memory: commands that print what this machine does."""
