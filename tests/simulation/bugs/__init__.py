"""Bugs that are planted one by one. The simulation must find each of them.

Some damage is repaired later, by the sweeper or the next owner. So each bug is searched in a mode in which nothing
repairs it. A seed finds its bug only as long as nothing else changes, so further seeds are tried if the first one finds
nothing: `PYTHONHASHSEED=0 python -m tests.simulation.bugs --help`.
"""

from tests.simulation.bugs import branches, housekeeping, log, rebases, requests, tasks
from tests.simulation.bugs.bug import Bug

__all__ = ["BUGS", "Bug"]

BUGS = (*log.BUGS, *requests.BUGS, *tasks.BUGS, *branches.BUGS, *rebases.BUGS, *housekeeping.BUGS)
