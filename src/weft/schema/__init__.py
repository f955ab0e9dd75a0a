"""Bodies of the HTTP APIs as msgspec structs: requests and answers, without behaviour or server-specific defaults."""
