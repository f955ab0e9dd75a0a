"""Commands that inspect this machine and its servers; none of them loads a model."""
