{{- define "weft.name" -}}
{{- $name := ternary .Release.Name (printf "%s-weft" .Release.Name) (contains "weft" .Release.Name) -}}
{{- trunc 40 $name | trimSuffix "-" -}}
{{- end -}}

{{- /* Of the release and one part of it: worker, picker, gateway. */ -}}
{{- define "weft.selector" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
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

{{- /* Of the release and one part of it: its pods on different nodes, where that is possible. */ -}}
{{- define "weft.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "weft.selector" . | nindent 8 }}
{{- end -}}

{{- /* Of the release and the values of one part of it. */ -}}
{{- define "weft.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
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
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
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
