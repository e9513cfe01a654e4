"""The operations of `RebaserClient`, a class for each kind of operation; `client` combines them.

A class inherits from the classes whose operations it uses. This package imports the other packages of `rebaser_client`
and the modules directly in it, except `client`.
"""
