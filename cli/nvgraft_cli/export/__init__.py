"""``nvgraft export``: write what other systems read of a host, such as Kubernetes manifests."""
