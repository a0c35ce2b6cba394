"""Training: from a config to a recipe, a run and its steps."""
