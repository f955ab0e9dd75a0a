{{- define "weft.name" -}}
{{- $name := ternary .Release.Name (printf "%s-weft" .Release.Name) (contains "weft" .Release.Name) -}}
{{- trunc 40 $name | trimSuffix "-" -}}
{{- end -}}

{{- /* Of the release and one part of it: worker, picker, gateway. */ -}}
{{- define "weft.selector" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- with .role }}
llm-d.ai/role: {{ . }}
{{- end }}
{{- end -}}

{{- define "weft.labels" -}}
{{ include "weft.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- /* Whether Envoy and names for workers are there, which an InferencePool takes the place of. */ -}}
{{- define "weft.hasEnvoy" -}}
{{- if and .Values.picker.enabled (not .Values.inferencePool.enabled) -}}yes{{- end -}}
{{- end -}}

{{- /* Of the release, one part of it, its labels, and its values. Without other constraints its pods are on different nodes, where
     that is possible. */ -}}
{{- define "weft.placement" -}}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "weft.selector" . | nindent 8 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "weft.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "weft.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "weft.image" -}}
{{- $version := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) -}}
{{- with .Values.image.digest }}{{ $version = printf "@%s" . }}{{ end -}}
image: {{ printf "%s%s" .Values.image.repository $version | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "weft.key" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.auth.existingSecret | quote }}, key: {{ .key | quote }}}}
{{- end -}}

{{- /* Of the Gateway that leads to the InferencePool, wherever it runs. */ -}}
{{- define "weft.gatewayPods" -}}
namespaceSelector: {}
podSelector:
  matchLabels:
    {{- with .Values.networkPolicy.gatewayPodLabels }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    gateway.networking.k8s.io/gateway-name: {{ .Values.inferencePool.gateway.name | quote }}
    {{- end }}
{{- end -}}

{{- /* Of a role of the connector, and the networks of its peers. */ -}}
{{- define "weft.transfer" -}}
{{- $extra := dict "secret_file" "/etc/weft/secret" "peers" .peers -}}
--kv-transfer-config={{ dict "kv_connector" "TcpConnector" "kv_role" .role "kv_ip" "$(POD_IP)" "kv_connector_extra_config" $extra | toJson }}
{{- end -}}
