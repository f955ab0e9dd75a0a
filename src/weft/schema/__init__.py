"""Bodies of the HTTP APIs as msgspec structs: what arrives, what is answered. No behaviour, no defaults of ours."""
