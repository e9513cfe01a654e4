"""Makes the schema of the chart's values. The schema is closed: Helm refuses values that it does not have.

The settings of servers come from `Settings`. The schema leaves out what the chart decides: `server_id` is the name of
the pod, and `http` is made from the value `port`.
"""

import dataclasses
import json
from typing import Any

from rebaser import setting_rules
from rebaser.setting_rules import LOWEST_LIMIT
from rebaser.settings import Settings
from rebaser_core.limits import COMMIT_LIMITS

Schema = dict[str, Any]

DECIDED = {"server_id", "http"}
FILES = {
    *("nats_creds", "nats_nkey", "nats_password_file", "nats_token_file"),
    *("nats_tls_ca", "nats_tls_cert", "nats_tls_key"),
}
ONLY_SECRET = {"nats_password", "nats_token"}
SECRETS = ONLY_SECRET | {"nats_url", "nats_user", "blobs", "spark"}
OF_CONSOLE = (  # settings that the console reads
    "nats_url", "nats_user", "nats_tls_hostname", "nats_tls_first", "nats_domain", "prefix", "inbox_prefix", "blobs",
    "log_level",
)  # fmt: skip
PATTERNS = {
    "nats_url": r"^[^@]*$",  # no password, because secrets.nats_url is for URLs with passwords
    "spark": f"^({setting_rules.SPARK.pattern})$",
    "inbox_prefix": f"^({setting_rules.INBOX.pattern})$",
    "reply_prefix": f"^({setting_rules.INBOX.pattern})$",
}

TEXT = {"type": "string"}
NAME = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
OPEN_PORT = {**PORT, "minimum": 1024}  # a container without capabilities cannot open lower ones
COUNT = {"type": "integer", "minimum": 1}
SIZE = {"type": "string", "pattern": "^[1-9][0-9]*(Ki|Mi|Gi|Ti)$"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
ANY = {"type": "object"}  # an object of Kubernetes, which Kubernetes checks itself


def closed(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def listed(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def described(schema: Schema, text: str) -> Schema:
    return {"description": text, **schema}


KEY = closed(name=NAME, key=NAME) | {"required": ["name", "key"]}


def keys(names: set[str]) -> Schema:
    return closed(**dict.fromkeys(sorted(names), KEY))


IMAGE = {
    "repository": TEXT,
    "tag": TEXT,
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
}
RESOURCES = closed(cpu={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+|m)?$"}, memory=SIZE)
PLACEMENT = {"nodeSelector": TEXTS, "tolerations": listed(ANY), "affinity": ANY, "priorityClassName": TEXT}


def setting(name: str, field: Schema) -> Schema:
    """Return the schema of one setting, as Helm has its value in YAML."""
    choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum")
    made = {key: choices[0][key] for key in kept if key in choices[0]}
    pattern = {"pattern": PATTERNS[name]} if name in PATTERNS else {}
    return {"description": field["description"], **made, **pattern}


def settings_schema() -> Schema:
    fields = Settings.model_json_schema()["properties"]
    limits = {
        name: {"type": "integer", "minimum": LOWEST_LIMIT, "maximum": highest}
        for name, highest in dataclasses.asdict(COMMIT_LIMITS).items()
    }
    left = {name: field for name, field in fields.items() if name not in DECIDED | FILES | ONLY_SECRET}
    made = {name: setting(name, field) for name, field in left.items() if name != "limits"}
    return closed(**made, limits=described(closed(**limits), fields["limits"]["description"]))


def schema() -> str:
    """Return the text of `values.schema.json`."""
    of_server = settings_schema()
    values = closed(
        **{"global": ANY},  # Helm adds this to the values of a chart that another chart uses.
        image=closed(**(IMAGE | {"repository": NAME}), pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        imagePullSecrets=listed(closed(name=NAME)),
        replicas=described(COUNT, "Not 0: without a server, nobody finds requests whose task was lost."),
        settings=of_server,
        secrets=keys(SECRETS),
        secretFiles=keys(FILES),
        envFromSecrets=listed(NAME),
        traces=closed(endpoint={"type": "string", "pattern": r"^(https?://[^@]+)?$"}),
        port=OPEN_PORT,
        resources=RESOURCES,
        tmpSize=SIZE,
        podLabels=TEXTS,
        podAnnotations=TEXTS,
        serviceAccountAnnotations=TEXTS,
        **PLACEMENT,
        sparkConnect=closed(
            enabled=FLAG,
            image=closed(**IMAGE),
            driverMemory={"type": "string", "pattern": "^[1-9][0-9]*[mg]$"},
            conf=TEXTS,
            resources=RESOURCES,
            tmpSize=SIZE,
            **PLACEMENT,
        ),
        console=closed(
            enabled=FLAG,
            actions=FLAG,
            hideValues=FLAG,
            port=OPEN_PORT,
            auth=closed(
                type={"enum": ["none", "token", "proxy"]},
                token={"anyOf": [KEY, {"type": "object", "maxProperties": 0}]},
                trustProxy=listed({"type": "string", "pattern": r"^[0-9a-fA-F.:]+/[0-9]+$"}),
                userHeader={"type": "string", "pattern": "^[A-Za-z0-9-]+$"},
            ),
            hosts=listed({"type": "string", "pattern": r"^[A-Za-z0-9.-]+(:[0-9]+)?$"}),
            settings=closed(**{name: of_server["properties"][name] for name in OF_CONSOLE}),
            secrets=keys(SECRETS),
            secretFiles=keys(FILES),
            resources=RESOURCES,
            tmpSize=SIZE,
            **PLACEMENT,
        ),
        networkPolicy=closed(
            enabled=FLAG,
            monitoring=listed(ANY),
            nats=closed(ports={**listed(PORT), "minItems": 1}, to=listed(ANY)),
            spark=listed(ANY),
            console=listed(ANY),
            egress=listed(ANY),
        ),
        autoscaling=closed(
            enabled=FLAG,
            minReplicas=described(COUNT, "Not 0, for the reason that replicas has."),
            maxReplicas=COUNT,
            load={"type": "number", "minimum": 0.05, "maximum": 0.9},
            cpuUtilization={"type": "integer", "minimum": 0, "maximum": 1000},
        ),
        podMonitor=closed(enabled=FLAG, labels=TEXTS, interval={"type": "string", "pattern": "^[1-9][0-9]*s$"}),
        prometheusRule=closed(enabled=FLAG, labels=TEXTS),
        dashboard=closed(enabled=FLAG, labels=TEXTS),
    )
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **values}, indent=1) + "\n"
