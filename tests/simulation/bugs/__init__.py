"""Bugs that are planted one by one. The simulation must find each of them.

Most bugs heal: the sweeper or the next owner repairs what they break. So each bug is looked for in the mode in which
nothing repairs it. A seed finds a bug only as long as the order of events stays the same; where the first seed finds
nothing, others are tried. `PYTHONHASHSEED=0 python -m tests.simulation.bugs --help`.
"""

from tests.simulation.bugs import branches, housekeeping, log, rebases, requests, tasks
from tests.simulation.bugs.bug import Bug

__all__ = ["BUGS", "Bug"]

BUGS = (*log.BUGS, *requests.BUGS, *tasks.BUGS, *branches.BUGS, *rebases.BUGS, *housekeeping.BUGS)
