"""The ops port: HTTP for probes and metrics, in the server's event loop. Only `serve` opens it."""
