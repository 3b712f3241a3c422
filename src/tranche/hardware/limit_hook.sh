# Limits the GPU memory of a container before its program starts. Container runtimes run this as the OCI hook createRuntime.
# Arguments: the share, the UUID of its GPU, the limit in MiB, nvidia-smi. The standard input is the container's state.
set -u
share=$1 gpu=$2 limit=$3 smi=$4
records=/run/tranche-limits
umask 077
mkdir -p "$records"

fail() {
    why="tranche: the container got no part of GPU $gpu by share $share: $*"
    printf '%s\n' "$why" >&2
    printf '%s %s\n' "$(date)" "$why" >"$records/.last-failure" # crun shows only that a hook failed
    exit 1
}

ended() { # whether no process lives in that control group
    case $(cat "$1/cgroup.events" 2>/dev/null) in *"populated 0"*) return 0 ;; esac
    [ ! -e "$1/cgroup.procs" ]
}

pid=$(sed -n 's/.*"pid" *: *\([0-9][0-9]*\).*/\1/p')
group=
while IFS= read -r line; do
    case $line in 0::/*) group=/sys/fs/cgroup${line#0::} ;; esac
done <"/proc/${pid:-none}/cgroup"
[ -e /sys/fs/cgroup/cgroup.controllers ] || fail "/sys/fs/cgroup is not cgroup v2, which the driver's memory limits need"
[ -n "$pid" ] && [ "$(cat "$group/cgroup.procs")" = "$pid" ] ||
    fail "it has no control group of its own to limit; start it with one (with podman, not --cgroups=disabled)"

# The driver limits a control group, and every container has its own: two of them could use twice the share.
(: >"$records/.lock") || fail "the hook cannot write $records; only root's containers can have a limit"
exec 9>"$records/.lock"
flock 9 || fail "the hook cannot lock $records/.lock"
for record in "$records"/*; do
    [ -e "$record" ] || continue
    other=$(cat "$record") || fail "the hook cannot read $record, which names the container that has the share"
    if ended "$other"; then
        rm -f "$record"
    elif [ "${record##*/}" = "$share@$gpu" ] && [ "$other" != "$group" ]; then
        fail "another container ($other) has the share; wait until it ends, or ask for a share with --compute, which serves several"
    fi
done
printf '%s\n' "$group" >"$records/$share@$gpu" || fail "the hook cannot write $records"
exec 9>&-

# A soft limit would be added to those of all groups above, and stay there when the container's group goes.
said=$("$smi" memory-limits --set -n "$group" --soft-limit 0 --hard-limit "$limit" -i "$gpu" 2>&1) ||
    fail "nvidia-smi memory-limits --set failed: $said; see the state of the GPU with: tranche doctor"
said=$("$smi" memory-limits --get -n "$group" -i "$gpu" 2>&1)
shown=$(printf '%s\n' "$said" | sed -n 's/^ *hard limit *: *//p')
[ "$shown" = "$limit MiB" ] || fail "the driver was told $limit MiB as the limit, but shows: $said"
