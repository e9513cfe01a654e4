"""A model of nats-server with JetStream, in memory: it receives and sends subjects with payloads.

A connection calls `publish`, `subscribe` and `unsubscribe`, and receives messages through `Client.deliver`. Delays and
losses on the way belong to the network. API calls are processed concurrently, so their answers may come in another
order.
"""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

from tests.simulation.model.connections import Client, Connections
from tests.simulation.model.consumers import NEVER, Consumer, PullConsumer, PushConsumer
from tests.simulation.model.store import NANOS, Headers, Refused, Stream, body_of, find, matches, time_text

BEGAN_NS = 1_767_225_600 * NANOS  # 2026-01-01, the start of every simulated world
API = "$JS.API."
DIRECT_LAG = 0.02  # seconds


class NatsModel:
    """The model of one nats-server.

    `api_delay` and `removal_delay` return the seconds that an API call, or the removal of an acked message, takes.
    `watch(stream, stored, removed)` is called for each message that is stored or removed. `asks_deposed` returns
    whether a read reaches the previous leader while that does not know of its deposition.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        api_delay: Callable[[], float] = lambda: 0.0,
        removal_delay: Callable[[], float] = lambda: 0.0,
        asks_deposed: Callable[[], bool] = lambda: False,
        watch: Callable[..., None] = lambda stream, stored, removed: None,
    ) -> None:
        self._loop = loop
        self._api_delay = api_delay
        self._removal_delay = removal_delay
        self._asks_deposed = asks_deposed
        self._watch = watch
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[str, dict[str, Consumer]] = {}
        self.outdated = -math.inf  # when a deposed leader last answered a read
        # Streams without a leader; True if callers get an error instead of no answer.
        self.leaderless: dict[str, bool] = {}
        self._connections = Connections()
        self._takers: dict[str, list[Stream]] = {}
        self._timers: dict[Consumer, tuple[float, asyncio.TimerHandle]] = {}
        self._flows: dict[str, PushConsumer] = {}
        self._created = 0

    # -- connections -----------------------------------------------------------------------------------------------

    def attach(self, client: Client) -> None:
        self._connections.attach(client)

    def detach(self, client: Client) -> None:
        self._connections.detach(client)

    def subscribe(self, client: Client, sid: int, subject: str) -> None:
        if not self._connections.subscribe(client, sid, subject):
            return
        for consumers in self.consumers.values():
            for consumer in consumers.values():
                if isinstance(consumer, PushConsumer) and consumer.target == subject:
                    self._wake(consumer)

    def unsubscribe(self, client: Client, sid: int) -> None:
        self._connections.unsubscribe(client, sid)

    def publish(self, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        """Handle a message from a connection."""
        heard = self.send(subject, reply, data, headers)
        if subject.startswith("$JS."):
            heard = self._control(subject, reply, data) or heard
        else:
            for stream in self._takers_of(subject):
                heard = self._store(stream, subject, reply, data, headers or {}) or heard
        if reply and not heard:
            self.send(reply, "", b"", {":status": "503", ":description": ""})

    # -- what consumers need ---------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def now_ns(self) -> int:
        return BEGAN_NS + int(self._loop.time() * NANOS)

    def send(self, subject: str, reply: str, data: bytes, headers: Headers | None, *, literal: str = "") -> bool:
        return self._connections.send(subject, reply, data, headers, literal=literal)

    def listened(self, subject: str, *, exactly: bool = False) -> bool:
        return self._connections.listened(subject, exactly=exactly)

    def acked(self, stream: Stream, sequence: int) -> None:
        if stream.config.get("retention") == "workqueue":
            self._loop.call_later(self._removal_delay(), stream.remove, sequence)

    def _wake(self, consumer: Consumer) -> None:
        if consumer.stream.name not in self.leaderless and not consumer.deleted:
            consumer.wake()
        self._arm(consumer)

    def _arm(self, consumer: Consumer) -> None:
        at = NEVER if consumer.deleted else consumer.timer()
        before = self._timers.pop(consumer, None)
        if before is not None:
            if before[0] == at:
                self._timers[consumer] = before
                return
            before[1].cancel()
        if at < NEVER:
            self._timers[consumer] = at, self._loop.call_at(at, self._ring, consumer)

    def _ring(self, consumer: Consumer) -> None:
        self._timers.pop(consumer, None)
        if consumer.stream.name in self.leaderless:
            self._loop.call_later(0.25, self._ring, consumer)
            return
        if not consumer.deleted:
            consumer.ring()
        if consumer.deleted:
            self.consumers.get(consumer.stream.name, {}).pop(consumer.name, None)
        self._arm(consumer)

    def wake_all(self, stream: str) -> None:
        for consumer in list(self.consumers.get(stream, {}).values()):
            self._wake(consumer)

    # -- faults ----------------------------------------------------------------------------------------------------

    def lose_leader(self, stream: str, *, told: bool) -> None:
        """Take the leader of `stream` away until `elect`. Pulls are ended, and a replica keeps its present content."""
        self.leaderless[stream] = told
        self.streams[stream].lag()
        for consumer in self.consumers.get(stream, {}).values():
            consumer.end(409, "Leadership Change")

    def elect(self, stream: str, *, forget_pushes: bool, deposed: bool = False) -> None:
        """Elect a new leader. With `forget_pushes`, ephemeral consumers are gone with the old leader.

        With `deposed`, the old leader is cut off from the others, and still answers some reads until `catch_up`.
        """
        self.leaderless.pop(stream, None)
        self.streams[stream].deposed = deposed
        if forget_pushes:
            for name, consumer in list(self.consumers.get(stream, {}).items()):
                if isinstance(consumer, PushConsumer) or "inactive_threshold" in consumer.config:
                    consumer.deleted = True
                    del self.consumers[stream][name]
        self.wake_all(stream)

    def catch_up(self, stream: str) -> None:
        """Bring all replicas of `stream` up to date."""
        self.streams[stream].replica = None
        self.streams[stream].deposed = False

    def restart(self) -> None:
        """Kill and restart the server: connections and everything in memory are lost."""
        for client in list(self._connections.clients):
            self.detach(client)
        for stream in self.streams.values():
            stream.restarted()
        for consumers in self.consumers.values():
            for name, consumer in list(consumers.items()):
                consumer.end(409, "Server Shutdown")
                if isinstance(consumer, PushConsumer) or "inactive_threshold" in consumer.config:
                    consumer.deleted = True
                    del consumers[name]

    def _takers_of(self, subject: str) -> list[Stream]:
        found = self._takers.get(subject)
        if found is None:
            found = self._takers[subject] = [stream for stream in self.streams.values() if stream.takes(subject)]
        return found

    # -- streams and the control subjects --------------------------------------------------------------------------

    def _store(self, stream: Stream, subject: str, reply: str, data: bytes, headers: Headers) -> bool:
        """Store a message, and return whether the sender gets an answer."""
        told = self.leaderless.get(stream.name)
        if told is not None:
            return not told
        try:
            body = stream.publish(subject, headers, data, self.now_ns())
        except Refused as refused:
            body = {**refused.body, "stream": stream.name, "seq": 0}
        if reply:
            self.send(reply, "", json.dumps(body).encode(), None)
        if "error" not in body and "duplicate" not in body:
            for consumer in list(self.consumers.get(stream.name, {}).values()):
                if not consumer.filter or matches(consumer.filter, subject):
                    self._wake(consumer)
        return True

    def _control(self, subject: str, reply: str, data: bytes) -> bool:
        if subject.startswith("$JS.ACK."):
            parts = subject.split(".")
            consumer = self.consumers.get(parts[2], {}).get(parts[3])
            if not isinstance(consumer, PullConsumer):
                return False
            if parts[2] in self.leaderless:
                return True
            if consumer.ack(parts[4:], data) and reply:
                self.send(reply, "", b"", None)
            self._arm(consumer)
            return True
        if subject in self._flows:
            push = self._flows.pop(subject)
            push.flow(subject)
            self._arm(push)
            return True
        if not subject.startswith(API):
            return False
        words = subject[len(API) :].split(".")
        if words[:2] == ["DIRECT", "GET"]:
            self._loop.call_later(self._api_delay(), self._get_directly, words[2], reply, data)
            return True
        if words[:3] == ["CONSUMER", "MSG", "NEXT"]:
            return self._next(words[3], words[4], reply, data)
        self._loop.call_later(self._api_delay(), self._answer, words, reply, data)
        return True

    def _next(self, stream: str, name: str, reply: str, data: bytes) -> bool:
        consumer = self.consumers.get(stream, {}).get(name)
        if not isinstance(consumer, PullConsumer) or stream in self.leaderless:
            return False
        try:
            body = json.loads(data) if data else {}
        except ValueError:
            body = {"batch": int(data)}
        consumer.pull(reply, body)
        self._arm(consumer)
        return True

    # -- the API ---------------------------------------------------------------------------------------------------

    def _answer(self, words: list[str], reply: str, data: bytes) -> None:
        try:
            body = json.loads(data) if data else {}
            answer = self._call(words, body)
        except Refused as refused:
            answer = refused.body
        except ValueError:
            answer = {"error": {"code": 400, "err_code": 10025, "description": "invalid JSON"}}
        if reply and answer is not None:
            self.send(reply, "", json.dumps(answer).encode(), None)

    def _get_directly(self, name: str, reply: str, data: bytes) -> None:
        """Answer a direct get from a replica, which may lag."""
        stream = self.streams[name]
        self._loop.call_later(DIRECT_LAG, stream.lag)
        try:
            found = find(stream.replica or stream, json.loads(data))
        except Refused:
            self.send(reply, "", b"", {":status": "404", ":description": "Message Not Found"})
            return
        told = {"Nats-Stream": name, "Nats-Subject": found.subject, "Nats-Sequence": str(found.sequence)}
        self.send(reply, "", found.data, {**found.headers, **told})

    def _call(self, words: list[str], body: dict[str, Any]) -> dict[str, Any] | None:
        match words:
            case ["INFO"]:
                return {"memory": 0, "storage": 0, "streams": len(self.streams), "consumers": 0}
            case ["STREAM", "CREATE", name]:
                return self._create_stream(name, body)
        name = words[3] if words[0] == "STREAM" and words[1] == "MSG" else words[2]
        stream = self.streams.get(name)
        if stream is None:
            raise Refused(404, 10059, "stream not found")
        told = self.leaderless.get(name)
        if told is not None:
            if told:
                raise Refused(503, 10008, "JetStream system temporarily unavailable")
            return None
        match words:
            case ["STREAM", "UPDATE", _]:
                stream.config = body
                self._takers.clear()
                return self._stream_info(stream, {})
            case ["STREAM", "INFO", _]:
                return self._stream_info(stream, body)
            case ["STREAM", "DELETE", _]:
                return self._delete_stream(stream)
            case ["STREAM", "PURGE", _]:
                return {
                    "success": True,
                    "purged": stream.purge(body.get("filter", ">"), body.get("seq"), body.get("keep")),
                }
            case ["STREAM", "MSG", "DELETE", _]:
                stream.delete(body["seq"])
                return {"success": True}
            case ["STREAM", "MSG", "GET", _]:
                old = stream.replica if stream.deposed and self._asks_deposed() else None
                self.outdated = self.outdated if old is None else self._loop.time()
                return {"message": body_of(find(old or stream, body))}
            case ["CONSUMER", "CREATE", _, consumer, *_]:
                return self._create_consumer(stream, consumer, body)
            case ["CONSUMER", "NAMES", _]:
                names = sorted(self.consumers[name])
                return {"consumers": names, "total": len(names), "offset": 0, "limit": 1024}
            case ["CONSUMER", "INFO", _, consumer]:
                return self._consumer(stream, consumer).info()
            case ["CONSUMER", "UNPIN", _, consumer]:
                found = self._consumer(stream, consumer)
                assert isinstance(found, PullConsumer)
                found.unpin()
                self._arm(found)
                return {}
            case ["CONSUMER", "DELETE", _, consumer]:
                return self._delete_consumer(self._consumer(stream, consumer))
            case _:
                raise Refused(400, 10025, f"{'.'.join(words)} is not modelled")

    def _create_stream(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        stream = self.streams.get(name)
        if stream is not None:
            if stream.config != config:
                raise Refused(400, 10058, "stream name already in use with a different configuration")
            return self._stream_info(stream, {})
        for other in self.streams.values():
            for one in other.config.get("subjects", ()):
                if any(matches(one, pattern) or matches(pattern, one) for pattern in config.get("subjects", ())):
                    raise Refused(400, 10065, "subjects overlap with an existing stream")
        self._created += 1
        created = f"{time_text(self.now_ns())[:-1]}{self._created:03d}Z"
        self.streams[name] = Stream(config, self.now_ns(), created, self._watch)
        self.consumers[name] = {}
        self._takers.clear()
        return self._stream_info(self.streams[name], {})

    def _stream_info(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        consumers = len(self.consumers[stream.name])
        return stream.info(body.get("subjects_filter"), body.get("offset", 0), consumers, self.now_ns())

    def _delete_stream(self, stream: Stream) -> dict[str, Any]:
        for consumer in list(self.consumers[stream.name].values()):
            self._delete_consumer(consumer)
        del self.streams[stream.name], self.consumers[stream.name]
        self._takers.clear()
        return {"success": True}

    def _create_consumer(self, stream: Stream, name: str, body: dict[str, Any]) -> dict[str, Any]:
        config, existing = body["config"], self.consumers[stream.name].get(name)
        if existing is not None:
            if body.get("action") == "create" and existing.config != config:
                raise Refused(400, 10148, "consumer already exists")
            existing.config = config
            return existing.info()
        consumer: Consumer
        if "deliver_subject" in config:
            consumer = PushConsumer(self, stream, config, lambda: self._flow_subject(consumer))
        else:
            consumer = PullConsumer(self, stream, config)
        before = consumer.info()
        self.consumers[stream.name][name] = consumer
        self._loop.call_soon(self._wake, consumer)
        return before

    def _flow_subject(self, consumer: Consumer) -> str:
        subject = f"$JS.FC.{consumer.stream.name}.{consumer.name}.{len(self._flows)}{consumer.delivered_consumer}"
        assert isinstance(consumer, PushConsumer)
        self._flows[subject] = consumer
        return subject

    def _consumer(self, stream: Stream, name: str) -> Consumer:
        consumer = self.consumers[stream.name].get(name)
        if consumer is None:
            raise Refused(404, 10014, "consumer not found")
        return consumer

    def _delete_consumer(self, consumer: Consumer) -> dict[str, Any]:
        del self.consumers[consumer.stream.name][consumer.name]
        consumer.deleted = True
        consumer.end(409, "Consumer Deleted")
        self._arm(consumer)
        return {"success": True}
