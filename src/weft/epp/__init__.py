"""The Endpoint Picker: chooses, for each request that Envoy shows it, the endpoint that serves it best."""
