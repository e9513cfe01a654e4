"""Values as operators write them. Each set of values is rendered and checked."""

from tests.kubernetes.chart import Values

MONITORED: Values = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
SCALED: Values = {
    "settings": {"concurrency": 1000},
    "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 40},
}
SPARK: Values = {"settings": {"spark": None}, "sparkConnect": {"enabled": True, "conf": {"spark.ui.port": "4040"}}}
BUCKET: Values = {
    "settings": {"blobs": "s3://bucket/rebaser"},
    "envFromSecrets": ["bucket-keys"],
    "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}]},
}
TRACED: Values = {
    "settings": {"trace_ratio": 0.01},
    "traces": {"endpoint": "http://collector:4318"},
    "networkPolicy": {"egress": [{"ports": [{"port": 4318}]}]},
}
SECRET: Values = {
    "settings": {"nats_url": None, "inbox_prefix": "_INBOX.server", "reply_prefix": "_INBOX.clients"},
    "secrets": {
        "nats_url": {"name": "nats", "key": "url"},
        "nats_user": {"name": "nats", "key": "user"},
        "nats_password": {"name": "nats", "key": "password"},
    },
}
CERTIFICATES: Values = {
    "settings": {"nats_url": "tls://a:4222,tls://b:4222", "create_streams": False},
    "secretFiles": {
        "nats_creds": {"name": "nats", "key": "server.creds"},
        "nats_tls_ca": {"name": "nats-tls", "key": "ca.crt"},
        "nats_tls_cert": {"name": "nats-tls", "key": "tls.crt"},
        "nats_tls_key": {"name": "nats-tls", "key": "tls.key"},
    },
}
PLACED: Values = {
    "image": {"digest": "sha256:" + "ab" * 32, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "rebaser", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}]
            }
        }
    },
    "priorityClassName": "high",
    "podLabels": {"team": "graph"},
    "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "serviceAccountAnnotations": {"example.com/role": "rebaser"},
    "resources": {"cpu": "500m", "memory": "8Gi"},
}
TUNED: Values = {
    "port": 9421,
    "replicas": 5,
    "settings": {"concurrency": 1000, "shutdown_grace": 40.5, "history_bytes": 2**40, "limits": {"max_depth": 128}},
}
ALONE: Values = {"replicas": 1, "settings": {"spark": "local[4]", "spark_driver_memory": "2g"}}
OPEN: Values = {"networkPolicy": {"enabled": False}}
CLOSED: Values = {
    "networkPolicy": {
        "monitoring": [],
        "nats": {"ports": [4222, 4223], "to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}]},
        "spark": [{"podSelector": {"matchLabels": {"app": "spark"}}}],
    }
}

CONSOLE: Values = {
    "console": {
        "enabled": True,
        "settings": {"nats_user": "reader", "inbox_prefix": "_INBOX.clients.reader", "log_level": "info"},
        "secrets": {"nats_password": {"name": "nats", "key": "reader"}},
        "secretFiles": {"nats_tls_ca": {"name": "nats-tls", "key": "ca.crt"}},
    }
}
CONSOLE_URL: Values = {"console": {"secrets": {"nats_url": {"name": "nats", "key": "reader-url"}}, "actions": True}}
INGRESS: Values = {"networkPolicy": {"console": [{"podSelector": {"matchLabels": {"app": "ingress"}}}]}}
TOKEN: Values = {
    **INGRESS,
    "console": {
        "hosts": ["console.example.com"],
        "hideValues": True,
        "auth": {"type": "token", "token": {"name": "console", "key": "token"}},
    },
}
PROXY: Values = {
    **INGRESS,
    "console": {
        "hosts": ["console.example.com", "rebaser.example.com:8443"],
        "auth": {"type": "proxy", "trustProxy": ["10.0.3.0/24", "fd00::/8"], "userHeader": "X-User"},
    },
}

MATRIX: dict[str, tuple[Values, ...]] = {
    "least": (),
    "monitored": (MONITORED,),
    "scaled": (SCALED,),
    "scaled by CPU, too": (SCALED, {"autoscaling": {"cpuUtilization": 80, "load": 0.9}}),
    "spark": (SPARK,),
    "bucket": (BUCKET,),
    "traced": (TRACED,),
    "secret": (SECRET,),
    "certificates": (CERTIFICATES,),
    "placed": (PLACED,),
    "tuned": (TUNED,),
    "alone": (ALONE,),
    "open": (OPEN,),
    "closed": (CLOSED,),
    "spark, placed": (SPARK, PLACED, {"sparkConnect": {"nodeSelector": {"disk": "fast"}, "image": {"tag": "7"}}}),
    "console": (CONSOLE,),
    "console, token": (CONSOLE, TOKEN),
    "console, proxy": (CONSOLE, CONSOLE_URL, PROXY),
    "console, secret": (CONSOLE, SECRET, CONSOLE_URL),
    "everything": (MONITORED, SCALED, SPARK, BUCKET, SECRET, PLACED, TUNED, CONSOLE, CONSOLE_URL),
}
