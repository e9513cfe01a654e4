"""The rules of Rebaser, without I/O: what a message is, what an update does, what a log adds up to."""
