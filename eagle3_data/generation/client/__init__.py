"""Everything that touches a server: the protocol, connections, retries, the checks at start."""
