{{/* The name of all objects. */}}
{{- define "tranche.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := .Release.Name -}}
{{- if not (contains $name $release) }}{{ $release = printf "%s-%s" $release $name }}{{ end -}}
{{- printf "%s-agent" ($release | trunc 57 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- define "tranche.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{- define "tranche.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tranche.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account that exists, as serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* The agents' user name in the API server. */}}
{{- define "tranche.user" -}}
system:serviceaccount:{{ include "tranche.namespace" . }}:{{ include "tranche.account" . }}
{{- end }}

{{- define "tranche.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{/* The labels of the agents' pods that never change. */}}
{{- define "tranche.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tranche.fullname" . }}
{{- end }}

{{- define "tranche.labels" -}}
{{ include "tranche.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The ConfigMap of device plugin files; empty without one. */}}
{{- define "tranche.pluginConfigMap" -}}
{{- if .Values.config.name -}}
{{- .Values.config.name -}}
{{- else if .Values.config.map -}}
{{- printf "%s-device-plugin" (include "tranche.fullname" .) -}}
{{- end -}}
{{- end }}

{{/* The ConfigMaps that the agents read, as a JSON list. */}}
{{- define "tranche.configMaps" -}}
{{- $names := list -}}
{{- if and .Values.migManager.enabled .Values.migManager.config.name }}{{ $names = append $names .Values.migManager.config.name }}{{ end -}}
{{- with include "tranche.pluginConfigMap" . }}{{ $names = append $names . }}{{ end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* "true" if the nodes take turns to change their layout. */}}
{{- define "tranche.rollout" -}}
{{- if and .Values.migManager.enabled (not (kindIs "invalid" .Values.rollout.maxUnavailable)) }}true{{ end -}}
{{- end }}

{{/* "true" if the controller chooses shares for gated pods, because the cluster has no claims. */}}
{{- define "tranche.byGates" -}}
{{- $old := semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- if and .Values.dra.enabled (or (eq .Values.dra.tier "gates") (and (eq .Values.dra.tier "auto") $old)) }}true{{ end -}}
{{- end }}

{{/* "true" if containers may get their devices through CDI. */}}
{{- define "tranche.cdi" -}}
{{- $strategy := .Values.deviceListStrategy | default "auto" -}}
{{- $told := printf "%s %s" $strategy (.Values.config.map | toJson) -}}
{{- $chosen := and .Values.cdi.mount (eq $strategy "auto") -}}
{{- $byPlugin := and .Values.devicePlugin.enabled (or $chosen (regexMatch "cdi-(annotations|cri)" $told)) -}}
{{- if or $byPlugin .Values.dra.enabled }}true{{ end -}}
{{- end }}

{{/* How the Prometheus Operator scrapes an agent, from the values of one of the two monitors. */}}
{{- define "tranche.endpoint" -}}
port: metrics
path: /metrics
interval: {{ .interval }}
honorLabels: {{ .honorLabels }}
relabelings:
  - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" if the agents write the labels or annotations of nodes. */}}
{{- define "tranche.writesNode" -}}
{{- if or .Values.migManager.enabled .Values.featureLabels.enabled }}true{{ end -}}
{{- end }}

{{/* The nodes that the agents run on. */}}
{{- define "tranche.nodes" -}}
requiredDuringSchedulingIgnoredDuringExecution:
  nodeSelectorTerms:
    {{- if eq .Values.nodeDiscovery "any" }}
    - matchExpressions:
        - {key: kubernetes.io/os, operator: In, values: [linux]}
        - {key: tranche.dev/gpu, operator: NotIn, values: ["false"]}
        - {key: nvidia.com/gpu.present, operator: NotIn, values: ["false"]}
        - {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}
        - {key: type, operator: NotIn, values: [virtual-kubelet]}
    {{- else }}
    - matchExpressions: [{key: nvidia.com/gpu.present, operator: In, values: ["true"]}]
    - matchExpressions: [{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}]
    - matchExpressions: [{key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}]
    - matchExpressions: [{key: eks.amazonaws.com/instance-gpu-manufacturer, operator: In, values: [nvidia]}]
    - matchExpressions: [{key: cloud.google.com/gke-accelerator, operator: Exists}]
    - matchExpressions: [{key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}]
    - matchExpressions: [{key: tranche.dev/gpu, operator: In, values: ["true"]}]
    {{- end }}
{{- end }}

{{/* The agent's options, one per line. */}}
{{- define "tranche.ownArguments" -}}
- --daemon-set={{ include "tranche.fullname" . }}
{{- if eq .Values.nodeDiscovery "any" }}
- --idle-without-gpu
{{- end }}
{{- with .Values.updateStrategy.rollingUpdate }}
{{- if not (has (toString .maxSurge) (list "0" "0%" "<nil>")) }}
- --stand-by
{{- end }}
{{- end }}
{{- range $part, $values := dict "device-plugin" .Values.devicePlugin "mig-manager" .Values.migManager "feature-labels" .Values.featureLabels "dra" .Values.dra "metrics" .Values.metrics }}
{{- if not $values.enabled }}
- --without={{ $part }}
{{- end }}
{{- end }}
{{- if include "tranche.rollout" . }}
- --max-unavailable={{ .Values.rollout.maxUnavailable }}
{{- end }}
{{- if and .Values.dra.enabled (ne .Values.dra.tier "auto") }}
- --tier={{ .Values.dra.tier }}
{{- end }}
{{- if .Values.dashboard.enabled }}
- --tell-view
{{- end }}
{{- if ne (int .Values.healthPort) 9440 }}
- --health-port={{ .Values.healthPort }}
{{- end }}
{{- if .Values.metrics.enabled }}
{{- if ne (int .Values.metrics.port) 9441 }}
- --metrics-port={{ .Values.metrics.port }}
{{- end }}
{{- if ne .Values.metrics.names "tranche" }}
- --metrics-names={{ .Values.metrics.names }}
{{- end }}
{{- end }}
{{- if ne .Values.logFormat "auto" }}
- --log-format={{ .Values.logFormat }}
{{- end }}
{{- if .Values.verbose }}
- --verbose
{{- end }}
{{- if ne .Values.kubeletPath "/var/lib/kubelet" }}
- --pod-resources-socket={{ .Values.kubeletPath }}/pod-resources/kubelet.sock
- --kubelet-socket={{ .Values.kubeletPath }}/device-plugins/kubelet.sock
{{- end }}
{{- with .Values.migStrategy }}
- --mig-strategy={{ . }}
{{- end }}
{{- with .Values.deviceListStrategy }}
- --device-list-strategy={{ . }}
{{- end }}
{{- with .Values.deviceIDStrategy }}
- --device-id-strategy={{ . }}
{{- end }}
{{- with .Values.virtualGPUs }}
- --vgpu={{ . }}
{{- end }}
{{- with .Values.virtualGPUThreadPercentage }}
- --vgpu-thread-percentage={{ . }}
{{- end }}
{{- range $flag, $value := dict "vgpu-memory-limit" .Values.virtualGPUMemoryLimit "pass-device-specs" .Values.passDeviceSpecs "gdrcopy-enabled" .Values.gdrcopyEnabled "gds-enabled" .Values.gdsEnabled "mofed-enabled" .Values.mofedEnabled }}
{{- if kindIs "bool" $value }}
- --{{ $flag }}={{ $value }}
{{- end }}
{{- end }}
{{- with .Values.nvidiaDriverRoot }}
- --driver-root={{ . }}
{{- end }}
{{- with .Values.cdi.nvidiaHookPath }}
- --nvidia-cdi-hook-path={{ . }}
{{- end }}
{{- with include "tranche.pluginConfigMap" . }}
- --plugin-config-map={{ . }}
{{- end }}
{{- with .Values.config.default }}
- --default-config={{ . }}
{{- end }}
{{- with .Values.config.fallbackStrategies }}
{{- if ne (join "," .) "named,single" }}
- --fallback-strategies={{ join "," . }}
{{- end }}
{{- end }}
{{- if .Values.migManager.enabled }}
{{- if ne .Values.migManager.config.name "tranche-layouts" }}
- --layouts={{ .Values.migManager.config.name }}
{{- end }}
{{- with .Values.migManager.config.default }}
- --default-layout={{ . }}
{{- end }}
{{- if ne .Values.migManager.inUse "wait" }}
- --in-use={{ .Values.migManager.inUse }}
{{- end }}
{{- if .Values.migManager.withReboot }}
- --with-reboot
{{- end }}
{{- range .Values.migManager.operatorNamespaces }}
- --operator-namespace={{ . }}
{{- end }}
{{- end }}
{{- if .Values.boot.enabled }}
- --boot-program={{ .Values.boot.program }}
{{- with .Values.boot.partition }}
- {{ printf "--boot-partition=%s" . | quote }}
{{- end }}
{{- if ne .Values.boot.timeout "2m" }}
- --boot-timeout={{ .Values.boot.timeout }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tranche.arguments" -}}
{{- include "tranche.ownArguments" . }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The MIG profiles that have a DeviceClass, as a JSON list. */}}
{{- define "tranche.profiles" -}}
{{- $known := .Files.Get "mig-profiles.yaml" | fromYamlArray -}}
{{- $wanted := list -}}
{{- range concat $known .Values.dra.deviceClasses.addProfiles | uniq -}}
{{- if not (has . $.Values.dra.deviceClasses.omitProfiles) }}{{ $wanted = append $wanted . }}{{ end -}}
{{- end -}}
{{- $wanted | toJson -}}
{{- end }}

{{/* A profile as part of an object's name: 1g.5gb+me is 1g-5gb-me, 1g.24gb-me is 1g-24gb-no-me. */}}
{{- define "tranche.profileName" -}}
{{- . | replace "-" "-no-" | replace "+" "-" | replace "." "-" | replace "," "-" -}}
{{- end }}

{{/* The name of the controller's objects. */}}
{{- define "tranche.controller" -}}
{{- printf "%s-controller" (include "tranche.fullname" . | trunc 52 | trimSuffix "-") -}}
{{- end }}

{{/* The labels of the controller's pods that never change. */}}
{{- define "tranche.controllerSelector" -}}
app.kubernetes.io/name: {{ include "tranche.controller" . }}
{{- end }}

{{- define "tranche.controllerLabels" -}}
{{ include "tranche.controllerSelector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The name of the dashboard's objects. */}}
{{- define "tranche.dashboard" -}}
{{- printf "%s-dashboard" (include "tranche.fullname" . | trunc 53 | trimSuffix "-") -}}
{{- end }}

{{/* The labels of the dashboard's pod that never change. */}}
{{- define "tranche.dashboardSelector" -}}
app.kubernetes.io/name: {{ include "tranche.dashboard" . }}
{{- end }}

{{- define "tranche.dashboardLabels" -}}
{{ include "tranche.dashboardSelector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
