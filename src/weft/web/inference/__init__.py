"""What every API that asks the model reads and writes alike: the call, parameters, usage, log-probabilities."""
