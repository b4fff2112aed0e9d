"""Something to measure: data that the kit writes itself, small models, one training script."""
