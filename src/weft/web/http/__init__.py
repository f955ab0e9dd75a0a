"""Code shared by all endpoints: routes, bodies, errors, streams, API keys and limits."""
