{{/* The name of all objects of a release. */}}
{{- define "rebaser.name" -}}
{{- if contains "rebaser" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-rebaser" .Release.Name }}{{ end }}
{{- end }}

{{/* The labels that select the pods of a component. Takes a dict: root, component. */}}
{{- define "rebaser.selector" -}}
app.kubernetes.io/name: rebaser
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* All labels of an object. Takes a dict: root, component. */}}
{{- define "rebaser.labels" -}}
{{ include "rebaser.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The reference of an image. Takes a dict: repository, tag, digest. */}}
{{- define "rebaser.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}

{{/* A value as the text of an environment variable. Helm reads all numbers as floats, and would write 1e+06. */}}
{{- define "rebaser.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* The settings of servers, with those that the chart knows. Returns YAML. */}}
{{- define "rebaser.settings" -}}
{{- $settings := omit .Values.settings "limits" }}
{{- if .Values.sparkConnect.enabled }}
{{- $_ := set $settings "spark" (printf "sc://%s-spark:15002" (include "rebaser.name" .)) }}
{{- end }}
{{- range $name, $value := .Values.settings.limits }}
{{- $_ := set $settings (printf "limits__%s" $name) $value }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{/* The settings of the console: those of servers that tell where things are, and its own. Returns YAML. */}}
{{- define "rebaser.consoleSettings" -}}
{{- $shared := pick .Values.settings "nats_url" "nats_tls_hostname" "nats_tls_first" "prefix" "blobs" }}
{{- range $name, $_ := .Values.console.secrets }}
{{- $shared = omit $shared $name }}
{{- end }}
{{- toYaml (merge (deepCopy .Values.console.settings) $shared) }}
{{- end }}

{{/* Settings as variables. Takes a dict: settings (YAML), secrets, secretFiles. */}}
{{- define "rebaser.variables" -}}
{{- range $setting, $value := .settings | fromYaml }}
- name: REBASER_{{ upper $setting }}
  value: {{ include "rebaser.text" $value | quote }}
{{- end }}
{{- range $setting, $key := .secrets }}
- name: REBASER_{{ upper $setting }}
  valueFrom:
    secretKeyRef:
      name: {{ $key.name }}
      key: {{ $key.key }}
{{- end }}
{{- range $setting, $key := .secretFiles }}
- name: REBASER_{{ upper $setting }}
  value: /etc/rebaser/{{ $setting }}/{{ $key.key }}
{{- end }}
- name: XDG_CACHE_HOME
  value: /tmp/cache
{{- end }}

{{/* Variables from whole Secrets. Takes their names. */}}
{{- define "rebaser.envFrom" -}}
{{- with . }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where a container may write, and its files from Secrets. Takes secretFiles. */}}
{{- define "rebaser.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- range $setting, $_ := . }}
- name: {{ $setting | replace "_" "-" }}
  mountPath: /etc/rebaser/{{ $setting }}
  readOnly: true
{{- end }}
{{- end }}

{{/* The volumes of these. Takes a dict: tmpSize, secretFiles. */}}
{{- define "rebaser.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .tmpSize }}
{{- range $setting, $key := .secretFiles }}
- name: {{ $setting | replace "_" "-" }}
  secret:
    secretName: {{ $key.name }}
    defaultMode: 0440
    items:
      - key: {{ $key.key }}
        path: {{ $key.key }}
{{- end }}
{{- end }}

{{/* Seconds that a server has between SIGTERM and SIGKILL: its own grace period, and a reserve. */}}
{{- define "rebaser.grace" -}}
{{- add 15 (ceil (.Values.settings.shutdown_grace | default 15.0)) }}
{{- end }}

{{- define "rebaser.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "rebaser.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Memory is never overcommitted: a server counts on what it may use. Takes the values of a component. */}}
{{- define "rebaser.resources" -}}
requests:
  cpu: {{ .cpu | quote }}
  memory: {{ .memory }}
limits:
  memory: {{ .memory }}
{{- end }}

{{/* Where pods may run. Takes the values of a component. */}}
{{- define "rebaser.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Refuses values that the schema cannot. */}}
{{- define "rebaser.check" -}}
{{- $values := .Values }}
{{- if and $values.sparkConnect.enabled (or $values.settings.spark $values.secrets.spark) }}
{{- fail "settings.spark and sparkConnect.enabled exclude each other: the Spark Connect server of this chart needs no address" }}
{{- end }}
{{- if not (or $values.sparkConnect.enabled $values.settings.spark $values.secrets.spark) }}
{{- fail "servers need Spark: set settings.spark to sc://HOST:PORT, or sparkConnect.enabled to true" }}
{{- end }}
{{- range $name, $_ := $values.secrets }}
{{- if hasKey $values.settings $name }}
{{- fail (printf "settings.%s and secrets.%s exclude each other" $name $name) }}
{{- end }}
{{- end }}
{{- range $name, $_ := $values.console.secrets }}
{{- if hasKey $values.console.settings $name }}
{{- fail (printf "console.settings.%s and console.secrets.%s exclude each other" $name $name) }}
{{- end }}
{{- end }}
{{- if not (or $values.settings.nats_url $values.secrets.nats_url) }}
{{- fail "set settings.nats_url to the address of NATS, or secrets.nats_url if it contains a password" }}
{{- end }}
{{- if and $values.console.enabled (not (or $values.settings.nats_url $values.console.settings.nats_url $values.console.secrets.nats_url)) }}
{{- fail "the console needs an address of NATS: set console.settings.nats_url, or console.secrets.nats_url" }}
{{- end }}
{{- if $values.console.enabled }}
{{- $auth := $values.console.auth }}
{{- if ne (eq $auth.type "token") (not (empty $auth.token)) }}
{{- fail "console.auth.type token and console.auth.token, the Secret that contains the token, need each other" }}
{{- end }}
{{- if ne (eq $auth.type "proxy") (not (empty $auth.trustProxy)) }}
{{- fail "console.auth.type proxy and console.auth.trustProxy, the addresses of the proxy, need each other" }}
{{- end }}
{{- if ne (eq $auth.type "none") (empty $values.console.hosts) }}
{{- fail "a console with a login needs console.hosts, the names under which browsers reach it; without a login, it has none" }}
{{- end }}
{{- if and $values.networkPolicy.enabled (ne $auth.type "none") (not $values.networkPolicy.console) }}
{{- fail "the NetworkPolicy does not let anybody reach the console: add its ingress or proxy to networkPolicy.console" }}
{{- end }}
{{- if and $values.console.hideValues $values.console.actions }}
{{- fail "console.hideValues excludes console.actions: who may define a formula can find out each value" }}
{{- end }}
{{- end }}
{{- if and $values.autoscaling.enabled (lt $values.autoscaling.maxReplicas $values.autoscaling.minReplicas) }}
{{- fail "autoscaling.maxReplicas is lower than autoscaling.minReplicas" }}
{{- end }}
{{- if and $values.autoscaling.enabled (not $values.settings.concurrency) }}
{{- fail "autoscaling needs settings.concurrency: how many change sets one server works on at once" }}
{{- end }}
{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.egress) (or $values.secrets.blobs (and $values.settings.blobs (not (hasPrefix "file:" $values.settings.blobs)))) }}
{{- fail "the NetworkPolicy does not let servers reach the blob store: add a rule to networkPolicy.egress" }}
{{- end }}
{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.egress) $values.traces.endpoint }}
{{- fail "the NetworkPolicy does not let servers reach traces.endpoint: add a rule to networkPolicy.egress" }}
{{- end }}
{{- end }}
