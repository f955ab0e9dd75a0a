"""What every endpoint shares: routes, bodies, errors, streams, keys and limits."""
