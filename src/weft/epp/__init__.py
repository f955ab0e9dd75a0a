"""The Endpoint Picker: chooses an endpoint for each request that Envoy forwards to it."""
