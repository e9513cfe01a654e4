"""Reads the data that an owner needs to decide a request: the request itself, and parts of other logs.

A request to create, apply, rebase or revert refers to commits of the same or of another change set. A reader reads
these commits as of one position, and holds no lock while it does so. Only the owner of a change set imports this
package.
"""
