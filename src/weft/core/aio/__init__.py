"""Tools for asyncio: streams merged, tasks grouped, retries delayed, worker processes, stalled writes."""
