"""Tables and figures of a run: what the paper reports, from records alone."""
