"""What a puller decides (ADR-37): when to pull for how much, what a status means, when it is over. No I/O, no clock.

Events go in as method calls, actions come out. Whoever drives it carries them out in order.
"""

from collections.abc import Sequence

from rebaser_client.errors import NotConnectedError
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
from rebaser_client.nats.errors import RequestTimeoutError
from rebaser_core.backoff import exponential_delay
from rebaser_core.errors import RebaserError

GRACE = 2.0  # seconds behind `expires` that an answer may take
MAX_STEP = 1.0  # seconds at most that pass between two ticks: a process that was paused has not been waiting
BACKOFF_MIN, BACKOFF_MAX = 0.05, 5.0  # seconds between pulls that are refused
# Statuses that end a pin. 400: the consumer has none, and the message that named one had the header from its publisher.
PIN_REFUSED = ("423", "400")


class PullState(PullCounts):
    """`limit` is free at first, and free at most. `threshold`: pull again when no more than that is outstanding or in
    the reader's buffer; None: when no more is outstanding than is free. `once`: one pull, and over with it (`fetch`).
    `survives_delete`: a consumer that is deleted may come back. `expires` and `heartbeat` (0: none) are seconds.
    `batch`: messages that a pull for bytes asks for; a `fetch` is over when they came, too.
    """

    def __init__(
        self,
        *,
        limit: int = 0,
        threshold: int | None = None,
        by_bytes: bool = False,
        expires: float = 30.0,
        heartbeat: float = 0.0,
        once: bool = False,
        survives_delete: bool = False,
        batch: int = BATCH_OF_BYTES,
    ) -> None:
        super().__init__(limit)
        self.ended = False
        self.pin = ""
        # How much has to be free; with a limit of 1 and a threshold of 0 or 1 that is 1.
        self.refill = 0 if threshold is None else max(limit - threshold, 1)
        self._limit = limit
        self.by_bytes = by_bytes
        self._expires = expires
        self._heartbeat = heartbeat
        self._once = once
        self._survives_delete = survives_delete
        self._batch = batch
        self._messages = 0  # that came
        self._connected = True
        self._refused_room = 0  # bytes that the next message did not fit into
        self._refusals = 0
        self._waiting = False  # for `resume`
        self._renewing = False
        self._heard = False
        self._heard_at = self._clock = self._now = 0.0

    # -- the reader ------------------------------------------------------------------------------------------------

    def start(self, now: float) -> Sequence[Action]:
        """The inbox is listened on. `now`, here and in `tick`, is any clock in seconds."""
        self._now = now
        return self.pull()

    def grant(self, amount: int) -> Sequence[Action]:
        """The reader has room for `amount` more: it took that much, or says so."""
        self.free += amount
        return self.pull()

    def stop(self) -> Sequence[Action]:
        """Pull no more."""
        return self._end(None)

    def pull(self, least: int = 0) -> Sequence[Action]:
        """The pull that is due, if one is. `least` has to be free for it; 0: as much as the threshold says."""
        amount = self.free
        if (
            amount < (least or self.refill or max(self.outstanding, 1))
            or amount <= self._refused_room
            or not self._connected
            or self._waiting
            or self._renewing
            or self.ended
            or (self._once and self._tokens)
        ):
            return NOTHING
        if not self._sent:
            self._heard = True  # silence begins now
        token = self._ask(self.pin, self._clock)
        if self.by_bytes:
            return (SendPull(token, self._batch, amount, self.pin),)
        return (SendPull(token, amount, 0, self.pin),)

    # -- the server ------------------------------------------------------------------------------------------------

    def message(self, amount: int = 1) -> Sequence[Action]:
        """A message came. `amount`: 1, or its size where bytes are counted."""
        self._heard = True
        self._refusals = 0
        self._refused_room = 0
        self._came(amount)
        if self._once:
            self._messages += 1
            all_came = not self.outstanding or (self.by_bytes and self._messages == self._batch)
            return self._end(None) if all_came else NOTHING
        return NOTHING if self.refill else self.pull()

    def pinned(self, pin: str) -> Sequence[Action]:
        """A message named `pin`."""
        if pin == self.pin:
            return NOTHING
        self.pin = pin
        return (NotifyPinned(pin),)

    def status(self, token: int, status: str, description: str, left: int | None) -> Sequence[Action]:
        """A status came for the pull `token`. `left`: what it did not bring, where the status says so."""
        self._heard = True
        if status == "100" or not self.expects(token) or self.ended:
            return NOTHING
        what = meaning(status, description)
        actions: list[Action] = []
        if status in PIN_REFUSED:
            actions += self._lose_pin(token)
        room = self._over(token, left)
        if self._once:
            return [*actions, *self._end(None if what == "silent" else refusal(status, description))]
        if what == "final" or (what == "deleted" and not self._survives_delete):
            return [*actions, *self._end(refusal(status, description))]
        if what in ("lost", "deleted"):
            self._lose_all()
        if what != "silent":
            event = "pull_failed" if what == "error" else "pull_refused"
            return [*actions, PullWarning(event, status, description), *self._wait()]
        if self.by_bytes and description.startswith("Message Size"):
            if room >= self._limit and self.free >= self._limit:
                reason = f"the next message is larger than the {self._limit} bytes that are pulled for"
                return [*actions, PullWarning("pull_refused", status, reason), *self._wait()]
            self._refused_room = min(room, self._limit - 1)  # all of it free is always worth a try
        elif status != "423":
            self._refusals = 0
        return [*actions, *self.pull()]

    def failed(self, token: int, error: RebaserError) -> Sequence[Action]:
        """The pull could not be sent."""
        self._over(token, None)
        return self._end(error) if self._once else self._wait()

    # -- time and connection ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> Sequence[Action]:
        """Some time passed; to be called at least each second, while there is no connection as well."""
        self._clock += min(now - self._now, MAX_STEP)
        self._now = now
        if self._heard:
            self._heard = False
            self._heard_at = self._clock
        if self._once and not self._tokens and self._clock > self._expires and not self.ended:
            return self._end(NotConnectedError(f"there was no connection to NATS for {self._expires:g} s"))
        if not self._connected or self._renewing or self.ended or not self._sent:
            return NOTHING
        if self._heartbeat and self._clock - self._heard_at >= 2 * self._heartbeat:
            if self._once:
                return self._end(RequestTimeoutError("the server sent no heartbeats: the pull is lost"))
            self._renewing = True
            return (PullWarning("pull_heartbeats_missed", "", f"{self.outstanding} outstanding"), RenewInbox())
        if not self._lose_older(self._clock - self._expires - GRACE):
            return NOTHING
        if self._once:
            return self._end(RequestTimeoutError(f"a pull was not answered within {self._expires:g} s"))
        return [PullWarning("pull_unanswered", "", f"within {self._expires:g} s"), *self.pull()]

    def gone(self) -> Sequence[Action]:
        """The consumer is not there any more, as somebody found who asked."""
        return self._end(ConsumerDeletedError("404", "it is not there any more"))

    def resume(self) -> Sequence[Action]:
        """The wait that `ResumeAfter` asked for is over."""
        self._waiting = False
        return self.pull()

    def renewed(self) -> Sequence[Action]:
        """Answers to earlier pulls cannot come any more; a new inbox is listened on."""
        self._renewing = False
        self._lose_all()
        return self.pull(1)

    def disconnected(self) -> Sequence[Action]:
        """There is no connection: no pulls, and silence means nothing."""
        self._connected = False
        self._lose_all()
        return self._cut()

    def reconnected(self) -> Sequence[Action]:
        """There is a connection. The server forgot our pulls with the one before."""
        self._connected = True
        self._heard = True
        self._refusals = 0
        self._waiting = False
        self._lose_all()
        return self._cut() or self.pull(1)

    # ----------------------------------------------------------------------------------------------------------------

    def _cut(self) -> Sequence[Action]:
        if self._once and self._tokens:
            return self._end(NotConnectedError("the connection to NATS was lost, and the pull with it"))
        return NOTHING

    def _end(self, error: RebaserError | None) -> Sequence[Action]:
        if self.ended:
            return NOTHING
        self.ended = True
        return (EndPulling(error),)

    def _wait(self) -> Sequence[Action]:
        if self._waiting or self.ended:
            return NOTHING
        self._waiting = True
        delay = exponential_delay(self._refusals, BACKOFF_MIN, BACKOFF_MAX)
        self._refusals += 1
        return (ResumeAfter(delay),)

    def _lose_pin(self, token: int) -> Sequence[Action]:
        """A pull named, or had been given, a pin that is not the consumer's any more: ours, unless an older one."""
        named = next((sent.pin for sent in self._sent if sent.token == token), "")
        if not self.pin or (named and named != self.pin):
            return NOTHING
        self.pin = ""
        return (NotifyUnpinned(),)
