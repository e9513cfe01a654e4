"""Renders the alerts as rules for Prometheus, and as the page of runbooks."""

import re

import yaml  # type: ignore[import-untyped]

from tests.monitoring.alert import Alert
from tests.monitoring.pages import PAGES
from tests.monitoring.server_tickets import SERVERS
from tests.monitoring.storage_tickets import STORAGE
from tests.monitoring.work_tickets import WORK

ALERTS = (*PAGES, *SERVERS, *STORAGE, *WORK)
PREFIX = "Rebaser"
PAGE = "https://github.com/rebaser/rebaser/blob/main/deploy/docs/runbooks.md"


def title(alert: Alert) -> str:
    return PREFIX + alert.name


def annotations(alert: Alert) -> dict[str, str]:
    """Return the annotations of an alert, in which labels are templates of Prometheus."""
    summary = re.sub(r"\{(\w+)\}", r"{{ $labels.\1 }}", alert.summary)
    return {
        "summary": "{{ $labels.job }}: " + summary,
        "description": alert.means.replace("`", ""),
        "runbook_url": f"{PAGE}#{title(alert).lower()}",
    }


def rules(head: str) -> str:
    """Return the file of alerting rules, which begins with the comment `head`."""
    groups = [
        {
            "name": "rebaser",
            "rules": [
                {
                    "alert": title(alert),
                    "expr": alert.expression,
                    **({"for": f"{alert.hold}s"} if alert.hold else {}),
                    "labels": {"severity": alert.severity},
                    "annotations": annotations(alert),
                }
                for alert in ALERTS
            ],
        }
    ]
    text: str = yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=110)
    return f"# {head}\n{text}"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes multi-line texts as YAML blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def runbooks(head: str) -> str:
    """Return the page of runbooks, with a section for each alert."""
    lines = [
        head,
        "# Runbooks",
        "",
        "This page has a section for each alert of `deploy/monitoring/alerts.yaml`; [operating](operating.md#metrics)",
        "says how to load this file. Each installation is one scrape job, which the label `job` names. An alert of",
        "severity `page` needs attention at once; a `ticket` can wait until the morning. An alert on a log event lasts",
        "until 15 min after the last event; all others end when their cause does.",
        "",
        'Begin with `rebaser top`, which shows what all servers and change sets do now. The commands under "Look at"',
        "change nothing; [accounts](accounts.md#which-commands-each-user-can-run) says which user may run which.",
        "",
        "| alert | severity | fires when |",
        "|---|---|---|",
    ]
    for alert in ALERTS:
        summary = alert.summary
        for label, words in (("{instance}", "a server"), ("{stream}", "one kind"), (": {code}", ""), (": {event}", "")):
            summary = summary.replace(label, words)
        lines.append(f"| [{title(alert)}](#{title(alert).lower()}) | {alert.severity} | {summary} |")
    for alert in ALERTS:
        held = f" for {alert.hold} s" if alert.hold else ""
        lines += ["", f"## {title(alert)}", "", alert.means, "", "Look at:", ""]
        lines += [f"{number}. {text}" for number, text in enumerate(alert.look, 1)]
        lines += ["", "What to do:", "", *(f"- {text}" for text in alert.act), ""]
        lines += [f"It fires when this holds{held}:", "", "```text", alert.expression, "```"]
    return "\n".join(lines) + "\n"
