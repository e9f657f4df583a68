"""Tasks, graders and everything that measures a method."""
