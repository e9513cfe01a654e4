"""Creates the sweeper of a server from the shared parts of the server."""

from rebaser.runtime.context import Context
from rebaser.sweeper.old_history import OldHistory
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UnroutableMessages


def make_sweeper(context: Context) -> Sweeper:
    settings = context.settings
    return Sweeper(
        context.js,
        context.subjects,
        settings.sweep_interval,
        UnroutableMessages(context.js, context.subjects, context.dead_letters, context.now_ms),
        OldHistory(context.js, context.subjects, context.reader, settings.history_for),
        closed_for=settings.closed_for,
        own_commits=context.own_commits,
        on_stream_error=context.stream_watch.check_soon,
        on_refusal=context.stream_watch.note_refusal,
    )
