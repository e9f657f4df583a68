"""Measurements: ratios, both sides in one run. Nothing here is imported by the library."""
