"""Helpers for asyncio: merged streams, grouped tasks, delayed retries, worker processes, stalled writes."""
