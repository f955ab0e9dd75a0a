"""The inference engine: schedules requests, allocates their KV blocks, computes steps and emits outputs."""
