{{- define "perigee.labels" -}}
app.kubernetes.io/name: perigee
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "perigee.settings" -}}
{{ .Release.Name }}-settings-{{ sha256sum .Values.settings | trunc 10 }}
{{- end }}
{{- define "perigee.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default (ternary "gpu" "latest" (gt (int $.Values.gpu.count) 0)) }}
{{- end -}}
{{- end -}}
{{- end }}
{{- define "perigee.scheme" -}}
{{ ternary "https" "http" (ne .Values.tlsSecret "") }}
{{- end }}
{{- /* What the restricted pod security standard asks of a container, and a root that is read-only. */}}
{{- define "perigee.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
{{- /* 0 is a value, and nil is none. */}}
{{- define "perigee.rollout" -}}
{{- $gpu := gt (int .Values.gpu.count) 0 -}}
{{- $surge := ternary (ternary 0 1 $gpu) .Values.rollout.maxSurge (kindIs "invalid" .Values.rollout.maxSurge) -}}
{{- $short := ternary (ternary 1 0 $gpu) .Values.rollout.maxUnavailable (kindIs "invalid" .Values.rollout.maxUnavailable) -}}
{{- if and (has (toString $surge) (list "0" "0%")) (has (toString $short) (list "0" "0%")) -}}
{{- fail "rollout: maxSurge and maxUnavailable are both 0, and no pod could ever be replaced" -}}
{{- end -}}
maxSurge: {{ $surge }}
maxUnavailable: {{ $short }}
{{- end }}
