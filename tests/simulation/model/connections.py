"""The connections to the modelled server: who listens to which subjects, and who receives a message."""

from collections.abc import Callable

from tests.simulation.model.store import Headers, matches


class Client:
    """A connection as the server sees it. Its messages go to `deliver(sid, subject, reply, data, headers)`."""

    def __init__(self, deliver: Callable[[int, str, str, bytes, Headers | None], None]) -> None:
        self.deliver = deliver
        self.subscriptions: dict[int, str] = {}


class Connections:
    """Clients and their subscriptions."""

    def __init__(self) -> None:
        self.clients: dict[Client, None] = {}
        self._literal: dict[str, dict[tuple[Client, int], None]] = {}
        # By the part of the subject before its only wildcard.
        self._inboxes: dict[str, dict[tuple[Client, int], None]] = {}
        self._wild: dict[tuple[Client, int], str] = {}

    def attach(self, client: Client) -> None:
        self.clients[client] = None

    def detach(self, client: Client) -> None:
        self.clients.pop(client, None)
        for sid in list(client.subscriptions):
            self.unsubscribe(client, sid)

    def subscribe(self, client: Client, sid: int, subject: str) -> bool:
        """Subscribe, and return whether the subject is literal, so that a push consumer can deliver to it."""
        if client not in self.clients:
            return False
        client.subscriptions[sid] = subject
        if subject.endswith(".*") and "*" not in subject[:-1]:
            self._inboxes.setdefault(subject[:-2], {})[client, sid] = None
            return False
        if "*" in subject or ">" in subject:
            self._wild[client, sid] = subject
            return False
        self._literal.setdefault(subject, {})[client, sid] = None
        return True

    def unsubscribe(self, client: Client, sid: int) -> None:
        subject = client.subscriptions.pop(sid, "")
        self._wild.pop((client, sid), None)
        for table, name in ((self._literal, subject), (self._inboxes, subject[:-2])):
            if (held := table.get(name)) is not None:
                held.pop((client, sid), None)
                if not held:
                    del table[name]

    def send(self, subject: str, reply: str, data: bytes, headers: Headers | None, *, literal: str = "") -> bool:
        heard = [*self._literal.get(subject, ()), *self._wide(subject)]
        for client, sid in heard:
            client.deliver(sid, literal or subject, reply, data, dict(headers) if headers else None)
        return bool(heard)

    def listened(self, subject: str, *, exactly: bool = False) -> bool:
        return subject in self._literal or (not exactly and bool(self._wide(subject)))

    def _wide(self, subject: str) -> list[tuple[Client, int]]:
        found = list(self._inboxes.get(subject.rpartition(".")[0], ()))
        return found + [one for one, pattern in self._wild.items() if matches(pattern, subject)]
