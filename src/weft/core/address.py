"""Addresses as text."""


def join_host_port(host: str, port: int) -> str:
    """Returns "host:port", with an IPv6 host in brackets."""
    host = f"[{host}]" if ":" in host and host[0] != "[" else host
    return f"{host}:{port}"
