"""What a request is for, read from its body: one module a dialect, one table that knows them all."""
