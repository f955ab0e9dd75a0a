"""Settings of the engine that users give as JSON or numbers: parsed, checked, named in errors."""
