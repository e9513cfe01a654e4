"""The commands that check and repair an installation, handle dead letters, and delete unneeded blobs.

`doctor_installation` does the work of `doctor` without a change set.
"""
