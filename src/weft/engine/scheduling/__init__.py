"""Who runs in a step, with how many tokens, on which blocks; plain Python over integers."""
