"""The commands that check and repair an installation, handle dead letters, and delete unneeded blobs.

`doctor_installation` does the work of `doctor` if no change set is given.
"""
