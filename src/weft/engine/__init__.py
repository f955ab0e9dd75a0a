"""The engine: schedules requests, allocates their blocks, computes steps and emits outputs."""
