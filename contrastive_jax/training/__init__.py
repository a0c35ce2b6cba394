"""Training: a config becomes a recipe, a recipe a run, a run its steps."""
