"""The resources of the JSON API, one module for each page."""
