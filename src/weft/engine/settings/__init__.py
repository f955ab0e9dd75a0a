"""Settings of the engine that users give as JSON or numbers: parsing, checks, and errors that name the flag."""
