#!/bin/sh
# Runs the image as the DaemonSet does, beside a container with a server that leaks: `cargo xtask dist --check` calls
# this as root, with the image's archive, the server and its profile. What it keeps lies in a directory of its own.
set -eu
export LC_ALL=C
archive=$1 server=$2 profile=$3
port=9461
home=$(mktemp -d)
# runc: crun refuses machines where control groups of both versions are mounted.
podman() { command podman --root "$home/root" --runroot "$home/runroot" --storage-driver vfs --runtime runc "$@"; }
end() {
    podman rm --force --time 5 --all >/dev/null 2>&1 || true
    rm -rf "$home"
}
trap end EXIT
show() { echo "\$ $*"; "$@"; }
# Repeats a command until it succeeds, for at most a minute.
until_true() {
    for _ in $(seq 60); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 1
    done
    echo "never became true: $*"; podman logs drainprof; return 1
}

mkdir "$home/conf.d" "$home/profiles" "$home/state" "$home/run"
cp "$profile" "$home/profiles/"
cat > "$home/conf.d/check.toml" <<CONFIG
[listen]
address = "127.0.0.1:$port"
[daemon]
interval = "1s"
discover_interval = "1s"
[[select.rules]]
action = "include"
container = "*"
[triggers.dsr_low]
window = false
CONFIG

show podman load --quiet --input "$archive"
image=$(podman images --noheading --format '{{.Repository}}:{{.Tag}}')
echo "image: $image, $(podman images --noheading --format '{{.Size}}') unpacked"
# Privileges, mounts and limits are those of deploy/kubernetes/daemonset.yaml.
limits="--network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096"
podman run --detach --name drainprof $limits --pid host --memory 512m --read-only --read-only-tmpfs=false \
    --cap-drop all --cap-add SYS_ADMIN,SYS_PTRACE,DAC_READ_SEARCH,SETUID,SETGID \
    --security-opt no-new-privileges --security-opt seccomp=unconfined \
    --volume "$home/conf.d:/etc/drainprof/conf.d:ro" --volume "$home/profiles:/etc/drainprof/profiles:ro" \
    --volume /sys/kernel/tracing:/sys/kernel/tracing:ro --volume "$home/state:/var/lib/drainprof" \
    --volume "$home/run:/run/drainprof" --tmpfs /var/cache/drainprof --tmpfs /tmp "$image" daemon
service=$(podman run --detach --name service $limits --volume "$server:/server:ro" --entrypoint /server \
    "$image" routing=request requests=1000000 rate=50)
pid=$(podman inspect --format '{{.State.Pid}}' service)

inside() { podman exec drainprof drainprof "$@"; }
metrics() { curl --silent --fail "http://127.0.0.1:$port/metrics"; }
counts() { metrics | grep "container=\"$service\"" | grep -q 'outcome="pinned"} [1-9]'; }
until_true counts
echo "the server in the other container has its label:"
metrics | grep "container=\"$service\"" | grep closes_total | cut -c 1-160
show inside doctor
# A window's names come from the symbol helper, which has no capability.
show inside diagnose -p "$pid" --for 3s --output /tmp/window.json --format json
inside report /tmp/window.json | grep who_pins -A 2
inside report /tmp/window.json | grep -q log_in
until_true test -s "$home/state/history.db"
podman stop --time 10 drainprof >/dev/null
[ "$(podman inspect --format '{{.State.ExitCode}}' drainprof)" = 0 ] || { echo "it did not end well"; podman logs drainprof; exit 1; }
echo "the image runs as the DaemonSet does"
