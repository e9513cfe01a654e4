"""What tests share: servers and clients as processes, a proxy, graphs, an evaluator of its own, the sources as data."""
