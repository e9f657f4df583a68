"""The trajectory report: one page with every step of a run, its rivals and what eviction left."""
