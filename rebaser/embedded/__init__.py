"""Starts and stops nats-server and Spark as child processes, and lowers the priority of processes.

Within Rebaser, this package imports only `rebaser_core.errors` and `rebaser_client.task_groups`.
"""

from typing import Final

# Maximum number of jobs that run on one Spark at once. An embedded Spark gets task slots for all of them.
MAX_CONCURRENT_JOBS: Final = 8
