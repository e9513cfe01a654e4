"""Decides when to pull and how much, how to react to a status, and when pulling ends (ADR-37). This module does no I/O,
and reads no clock.

Each event is a call of a method, which returns the actions that `Puller` has to carry out, in order.
"""

from collections.abc import Sequence

from rebaser_client.jetstream.errors import ConsumerDeletedError
from rebaser_client.jetstream.pull.actions import (
    NOTHING,
    Action,
    EndPulling,
    NotifyPinned,
    NotifyUnpinned,
    PullWarning,
    RenewInbox,
    ResumeAfter,
    SendPull,
    meaning,
    refusal,
)
from rebaser_client.jetstream.pull.counts import PullCounts
from rebaser_client.jetstream.pull.options import BATCH_OF_BYTES
from rebaser_client.nats.errors import NoAnswerError, NotConnectedError
from rebaser_core.backoff import exponential_delay
from rebaser_core.errors import RebaserError

GRACE = 2.0  # seconds beyond `expires` that an answer may take
MAX_STEP = 1.0  # maximum seconds counted between two ticks; time during which the process was paused does not count
BACKOFF_MIN, BACKOFF_MAX = 0.05, 5.0  # seconds until the next pull after refused pulls
IDLE_HEARTBEAT = "100"
WRONG_PIN = "423"
# The statuses that end a pin. The server answers with status 400 if the consumer has no pin. That happens if a
# publisher has forged the header with the pin.
PIN_REFUSED = (WRONG_PIN, "400")
MESSAGE_TOO_LARGE = "Message Size"


class PullState(PullCounts):
    """The state of one reader's pulls. `counts` defines the free and the outstanding amount.

    - `limit`: the amount that is free at the beginning, and the maximum that can be free.
    - `threshold`: pull again when the amount that is outstanding or in the reader's buffer falls to this value or
      below. None: pull again when the free amount is at least the outstanding amount.
    - `expires` and `heartbeat`: seconds. A `heartbeat` of 0 means that there are no heartbeats.
    - `single_pull`: end after one pull (`fetch`).
    - `survives_delete`: if the consumer is deleted, wait until it exists again.
    - `batch`: the number of messages requested by a pull that is limited in bytes. With `single_pull`, pulling also
      ends once that many messages were delivered.
    """

    def __init__(
        self,
        *,
        limit: int = 0,
        threshold: int | None = None,
        by_bytes: bool = False,
        expires: float = 30.0,
        heartbeat: float = 0.0,
        single_pull: bool = False,
        survives_delete: bool = False,
        batch: int = BATCH_OF_BYTES,
    ) -> None:
        super().__init__(limit)
        self.ended = False
        self.pin = ""
        # The amount that must be free before another pull is sent. Without a threshold, `min_free` is 0, which stands
        # for the outstanding amount, but at least 1.
        self.min_free = 0 if threshold is None else max(limit - threshold, 1)
        self._limit = limit
        self.by_bytes = by_bytes
        self._expires = expires
        self._heartbeat = heartbeat
        self._single_pull = single_pull
        self._survives_delete = survives_delete
        self._batch = batch
        self._messages = 0  # messages delivered so far
        self._connected = True
        self._refused_room = 0  # the number of bytes into which the next message did not fit
        self._refusals = 0  # the number of consecutive refused pulls
        self._backing_off = False  # whether pulling is paused until `resume` is called
        self._renewing = False
        self._received = False  # whether anything was received since the last tick
        self._received_at = self._clock = self._now = 0.0

    # -- events of the reader --------------------------------------------------------------------------------------

    def start(self, now: float) -> Sequence[Action]:
        """Begin to pull. The caller has subscribed to the inbox.

        `now` is a time in seconds. Any clock may be used, but `tick` must use the same clock.
        """
        self._now = now
        return self.pull()

    def grant(self, amount: int) -> Sequence[Action]:
        """Record that the reader took messages or gave credit, so that pulls may request `amount` more."""
        self.free += amount
        return self.pull()

    def stop(self) -> Sequence[Action]:
        """End pulling, because the reader wants no more messages."""
        return self._end(None)

    def pull(self, min_free: int = 0) -> Sequence[Action]:
        """Return the pull to send now, if any. A pull is due if at least `min_free` is free.

        If `min_free` is 0, the usual threshold applies.
        """
        amount = self.free
        usual = self.min_free if self.min_free > 0 else max(self.outstanding, 1)
        if (
            amount < (min_free if min_free > 0 else usual)
            or amount <= self._refused_room
            or not self._connected
            or self._backing_off
            or self._renewing
            or self.ended
            or (self._single_pull and self._tokens)
        ):
            return NOTHING
        if not self._sent:
            self._received = True  # the heartbeat timer starts now
        token = self._add_pull(self.pin, self._clock)
        if self.by_bytes:
            return (SendPull(token, self._batch, amount, self.pin),)
        return (SendPull(token, amount, 0, self.pin),)

    # -- events of the server --------------------------------------------------------------------------------------

    def message(self, amount: int = 1) -> Sequence[Action]:
        """Record that a message was delivered. `amount` is 1, or the size of the message if bytes are counted."""
        self._received = True
        self._refusals = 0
        self._refused_room = 0
        self._count_delivery(amount)
        if self._single_pull:
            self._messages += 1
            complete = not self.outstanding or (self.by_bytes and self._messages == self._batch)
            return self._end(None) if complete else NOTHING
        return NOTHING if self.min_free else self.pull()

    def pinned(self, pin: str) -> Sequence[Action]:
        """Record that a message with the pin id `pin` was received."""
        if pin == self.pin:
            return NOTHING
        self.pin = pin
        return (NotifyPinned(pin),)

    def status(self, token: int, status: str, description: str, undelivered: int | None) -> Sequence[Action]:
        """Record that a status was received for the pull `token`. `undelivered` is the amount that the pull did not
        deliver, if the status gives it."""
        self._received = True
        if status == IDLE_HEARTBEAT or not self.is_current(token) or self.ended:
            return NOTHING
        pin_lost = self._lose_pin(token) if status in PIN_REFUSED else NOTHING
        undelivered = self._finish_pull(token, undelivered)
        return [*pin_lost, *self._after_status(status, description, undelivered)]

    def _after_status(self, status: str, description: str, undelivered: int) -> Sequence[Action]:
        """Decide how to continue after a status ended a pull."""
        what = meaning(status, description)
        if self._single_pull:
            return self._end(None if what == "expected" else refusal(status, description))
        if what == "final" or (what == "deleted" and not self._survives_delete):
            return self._end(refusal(status, description))
        if what in ("all_lost", "deleted"):
            self._give_up_all()
        if what != "expected":
            event = "pull_failed" if what == "error" else "pull_refused"
            return [PullWarning(event, status, description), *self._back_off()]
        if self.by_bytes and description.startswith(MESSAGE_TOO_LARGE):
            return self._after_too_large(status, undelivered)
        if status != WRONG_PIN:
            self._refusals = 0
        return self.pull()

    def _after_too_large(self, status: str, room: int) -> Sequence[Action]:
        """Decide how to continue when the next message did not fit into the `room` bytes that its pull had left."""
        if room >= self._limit and self.free >= self._limit:
            reason = f"the next message is larger than the {self._limit} bytes that a pull may request"
            return [PullWarning("pull_refused", status, reason), *self._back_off()]
        self._refused_room = min(room, self._limit - 1)  # so that a pull for the whole limit is still sent
        return self.pull()

    def failed(self, token: int, error: RebaserError) -> Sequence[Action]:
        """Record that the pull `token` could not be sent because of `error`."""
        self._finish_pull(token, None)
        return self._end(error) if self._single_pull else self._back_off()

    # -- events of the clock and the connection --------------------------------------------------------------------

    def tick(self, now: float) -> Sequence[Action]:
        """Record that the time is `now`. Call this at least once a second, even without a connection."""
        self._clock += min(now - self._now, MAX_STEP)
        self._now = now
        if self._received:
            self._received = False
            self._received_at = self._clock
        if self._single_pull and not self._tokens and self._clock > self._expires and not self.ended:
            return self._end(NotConnectedError(f"there was no connection to NATS for {self._expires:g} s"))
        if not self._connected or self._renewing or self.ended or not self._sent:
            return NOTHING
        if self._heartbeat and self._clock - self._received_at >= 2 * self._heartbeat:
            if self._single_pull:
                return self._end(NoAnswerError("the server sent no heartbeats: the pull is lost"))
            self._renewing = True
            return (PullWarning("pull_heartbeats_missed", "", f"{self.outstanding} outstanding"), RenewInbox())
        if not self._give_up_older(self._clock - self._expires - GRACE):
            return NOTHING
        if self._single_pull:
            return self._end(NoAnswerError(f"the server did not end a pull within {self._expires:g} s"))
        return [
            PullWarning("pull_unanswered", "", f"the server did not end a pull within {self._expires:g} s"),
            *self.pull(),
        ]

    def gone(self) -> Sequence[Action]:
        """End pulling, because the server reported that the consumer no longer exists."""
        return self._end(ConsumerDeletedError("404", "the consumer does not exist any more"))

    def resume(self) -> Sequence[Action]:
        """Continue after the pause that `ResumeAfter` requested."""
        self._backing_off = False
        return self.pull()

    def renewed(self) -> Sequence[Action]:
        """Continue with a new inbox. The caller has subscribed to it, so answers to earlier pulls no longer arrive."""
        self._renewing = False
        self._give_up_all()
        return self.pull(1)

    def disconnected(self) -> Sequence[Action]:
        """Record that there is no connection. From now on, no pulls are sent, and no heartbeats are expected."""
        self._connected = False
        self._give_up_all()
        return self._end_lost_pull()

    def reconnected(self) -> Sequence[Action]:
        """Record that there is a connection again. The server has forgotten the pulls of the previous connection."""
        self._connected = True
        self._received = True
        self._refusals = 0
        self._backing_off = False
        self._give_up_all()
        return self._end_lost_pull() or self.pull(1)

    def _end_lost_pull(self) -> Sequence[Action]:
        if self._single_pull and self._tokens:
            return self._end(NotConnectedError("the connection to NATS was lost, and the pull with it"))
        return NOTHING

    def _end(self, error: RebaserError | None) -> Sequence[Action]:
        if self.ended:
            return NOTHING
        self.ended = True
        return (EndPulling(error),)

    def _back_off(self) -> Sequence[Action]:
        if self._backing_off or self.ended:
            return NOTHING
        self._backing_off = True
        delay = exponential_delay(self._refusals, BACKOFF_MIN, BACKOFF_MAX)  # the puller adds the jitter
        self._refusals += 1
        return (ResumeAfter(delay),)

    def _lose_pin(self, token: int) -> Sequence[Action]:
        """Forget the pin of this client, because the server refused the pin in the pull `token`.

        If that pull contained an older pin, keep the current pin.
        """
        refused_pin = next((pull.pin for pull in self._sent if pull.token == token), "")
        if not self.pin or (refused_pin and refused_pin != self.pin):
            return NOTHING
        self.pin = ""
        return (NotifyUnpinned(),)
