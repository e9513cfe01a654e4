"""Publishes tasks: the body-less message that says "this change set needs an owner".

Rule of the order: the request first, its ack awaited, then the task. A task that is there already does the job.
"""

from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import is_subject_full
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects


async def publish_task(js: JetStream, subjects: Subjects, key: ChangeSetKey) -> bool:
    """Make sure that `key` has a task; returns whether it had none.

    No `Nats-Msg-Id`: the duplicate window would swallow wake-ups. Raises `TransientError` if it cannot be stored.
    """
    try:
        await js.publish(subjects.task(key), b"")
    except ApiError as error:
        if is_subject_full(error):
            return False
        raise
    return True
