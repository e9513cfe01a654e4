"""Helpers that tests of several folders share: processes of servers and clients, a NATS proxy, graphs, a second
evaluator, and the imports of the product as data."""
