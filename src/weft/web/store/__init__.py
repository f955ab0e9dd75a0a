"""Storage of responses, conversations, files and batches: in memory, or in one SQLite file that outlives restarts."""
