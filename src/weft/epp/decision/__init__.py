"""From a request to an endpoint: plugins in profiles, and the account of what they said."""
