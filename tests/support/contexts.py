"""The objects that all owners of a server share, for tests that run parts of a server in this process, with any
engine."""

import itertools
import time
from typing import Any, cast

from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.runtime.measured import MeasuredBlobs
from rebaser.runtime.request_deleter import RequestDeleter
from rebaser.runtime.shared_info import SharedStreamInfo
from rebaser.runtime.stream_watch import StreamWatch
from rebaser.settings import Settings
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_core.ids import ulid
from rebaser_core.streams.subjects import Subjects


def context_of(js: JetStream, subjects: Subjects, settings: Settings, engine: object = None) -> Context:
    blobs = MeasuredBlobs(open_blobs(None, js, subjects.blobs_bucket))
    numbers = itertools.count(1)
    return Context(
        settings=settings,
        connection=js.connection,
        js=js,
        stream_watch=StreamWatch(js, subjects, settings.topology(), create=settings.create_streams),
        subjects=subjects,
        blobs=blobs,
        reader=StateLoader(js, subjects, blobs, share_ids=True),
        engine=cast("Any", engine),
        deleter=RequestDeleter(js, subjects.requests_stream),
        requests_info=SharedStreamInfo(js, subjects.requests_stream),
        dead_letters=DeadLetterPublisher(js, subjects, blobs, settings.server_id),
        now=time.monotonic,
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=lambda: ulid(next(numbers), bytes(10)),
    )
