"""The ops port, which serves probes and metrics over HTTP in the server's event loop. Only `serve` opens it."""
