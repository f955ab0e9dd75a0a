"""Commands that look at this machine and at the servers on it; none of them loads a model."""
