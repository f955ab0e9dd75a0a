"""What the picker knows from Kubernetes' API server."""
