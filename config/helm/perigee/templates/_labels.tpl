{{- define "perigee.labels" -}}
app.kubernetes.io/name: perigee
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "perigee.settings" -}}
{{ .Release.Name }}-settings-{{ sha256sum .Values.settings | trunc 10 }}
{{- end }}
