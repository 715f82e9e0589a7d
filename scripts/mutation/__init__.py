"""Changes the code on purpose, to see whether tests notice: the parts of scripts/mutate."""
