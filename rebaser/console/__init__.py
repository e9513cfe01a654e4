"""The web console: pages and a JSON API that show an installation in a browser.

`server` runs it, `app` has its routes, `access.guard` its safety rules. It imports only the client and the core, and
only the command line imports it.
"""
