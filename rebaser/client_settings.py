"""The settings that every process needs to reach an installation, read from command-line flags and from environment
variables (`REBASER_…`).

Commands that only talk to servers import no other settings, because building the model of all settings would make
their start a tenth longer.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from rebaser import setting_rules
from rebaser_core.errors import ConfigError
from rebaser_core.limits import Limits

if TYPE_CHECKING:
    from rebaser_client.jetstream import Access

PREFIX = "rebaser_"  # prefix of environment variables, in upper or lower case
LIMIT_PREFIX = f"{PREFIX}limits__"
ACCESS = (
    "nats_creds", "nats_nkey", "nats_user", "nats_password", "nats_password_file", "nats_token", "nats_token_file",
    "nats_tls_ca", "nats_tls_cert", "nats_tls_key", "nats_tls_hostname", "nats_tls_first",
    "nats_domain",
)  # fmt: skip
S = TypeVar("S", bound="ClientSettings")


class ClientSettings(BaseModel):
    """The settings of a client. Sizes are in bytes.

    `ClientSettings()` reads the environment; arguments take precedence over it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    nats_url: str = Field(
        "nats://127.0.0.1:4222",
        repr=False,
        description="URL of the NATS server, or several separated by commas; tls:// requires TLS.",
    )
    nats_creds: Path | None = Field(None, description="NATS credentials file.")
    nats_nkey: Path | None = Field(None, description="File that holds the seed of an nkey.")
    nats_user: str | None = Field(None, description="NATS user.")
    nats_password: SecretStr | None = Field(None, description="Password of the NATS user.")
    nats_password_file: Path | None = Field(None, description="File that holds the password of the NATS user.")
    nats_token: SecretStr | None = Field(None, description="NATS token.")
    nats_token_file: Path | None = Field(None, description="File that holds the NATS token.")
    nats_tls_ca: Path | None = Field(
        None, description="File of the trusted CA certificates (PEM); default: the CA certificates of the system."
    )
    nats_tls_cert: Path | None = Field(None, description="Client certificate for NATS (PEM).")
    nats_tls_key: Path | None = Field(
        None, description="Key of the client certificate (PEM), unless the certificate file holds it."
    )
    nats_tls_hostname: str | None = Field(
        None, description="Host name in the certificate of NATS, if it differs from the host name in the URL."
    )
    nats_tls_first: bool = Field(
        False, description="Whether NATS expects TLS before it says anything (`handshake_first` in its configuration)."
    )
    nats_domain: str | None = Field(
        None, description="JetStream domain; set it if the account imports JetStream of another account as this domain."
    )
    prefix: str = Field("", description="Prefix of all stream and subject names; separates installations on one NATS.")
    inbox_prefix: str = Field("_INBOX", description="Prefix of the subjects on which this process receives answers.")
    reply_prefix: str | None = Field(
        None,
        description="Prefix of the inboxes that clients may use for their replies; servers refuse all others. Default:"
        " the inbox prefix of the server. With another prefix, clients cannot direct replies to the inbox of a server.",
    )
    blobs: str | None = Field(
        None, description="URL of the blob store: file://, s3://, gs:// or az://; default: blobs are in NATS."
    )
    limits: Limits = Field(
        Limits(),
        description="Bounds on requests, each with a variable of its own: REBASER_LIMITS__MAX_DEPTH and so on.",
    )

    @model_validator(mode="before")
    @classmethod
    def _add_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        limits: dict[str, str] = {}
        for variable, value in os.environ.items():
            name = variable.lower()
            if name.startswith(LIMIT_PREFIX):
                limits[name.removeprefix(LIMIT_PREFIX)] = value
            elif name.startswith(PREFIX):
                found[name.removeprefix(PREFIX)] = value
        return found | ({"limits": limits} if limits else {}) | given

    _check_inbox = field_validator("inbox_prefix", "reply_prefix")(setting_rules.check_inbox)
    _check_limits = field_validator("limits", mode="before")(setting_rules.check_limits)

    def access(self) -> "Access":
        """Return the settings with which a client connects to NATS: credentials, certificates and JetStream domain."""
        password, token = self.nats_password, self.nats_token
        return {
            "creds": self.nats_creds,
            "nkey": self.nats_nkey,
            "user": self.nats_user,
            "password": None if password is None else password.get_secret_value(),
            "password_file": self.nats_password_file,
            "token": None if token is None else token.get_secret_value(),
            "token_file": self.nats_token_file,
            "tls_ca": self.nats_tls_ca,
            "tls_cert": self.nats_tls_cert,
            "tls_key": self.nats_tls_key,
            "tls_hostname": self.nats_tls_hostname,
            "tls_first": self.nats_tls_first or None,
            "domain": self.nats_domain,
        }

    def replies_under(self) -> str:
        """Return the prefix of the inboxes to which a server replies."""
        return self.inbox_prefix if self.reply_prefix is None else self.reply_prefix

    def check_client(self) -> None:
        """Raise `ConfigError` if servers would refuse to reply to a client with these settings."""
        if not f"{self.inbox_prefix}.".startswith(f"{self.replies_under()}."):
            raise ConfigError(
                f"servers reply only to inboxes under {self.reply_prefix}, and this client receives replies under"
                f" {self.inbox_prefix}: these are the settings of a server; use those of another user"
            )


def load_client_settings(**given: object) -> ClientSettings:
    """Return the settings of a client. A value in `given` that is not None takes precedence over the environment, and
    the environment over the defaults.

    Raise `ConfigError` with a one-line message if a setting is invalid.
    """
    return load(ClientSettings, given)


def load(model: type[S], given: dict[str, object]) -> S:
    """Return the settings that `model` defines, as `load_client_settings` does."""
    try:
        return model(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = "__".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"setting {name} (REBASER_{name.upper()}): {first['msg'].removeprefix('Value error, ')}"
        ) from None
