"""The operations of `RebaserClient`, a class for each kind of operation; `client` combines them.

A class inherits from the classes whose operations it uses. This package imports the other packages of the client and
the modules beside them, but not `client`.
"""
