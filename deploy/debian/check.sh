#!/bin/sh
# What the package does on a Debian that has nothing else: `cargo xtask vm --systemd` runs this as root.
# Lines and results are those of a test binary, between marks of the virtual machine.
cd /opt/check || exit 1
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
passed=0 failed=0

# Runs a function as one test; its output is shown.
check() {
    echo "test $1 ... "
    if "$1"; then
        passed=$((passed + 1)); echo ok
    else
        failed=$((failed + 1)); echo FAILED; names="$names $1"
        journalctl --unit drainprof --lines 30 --no-pager --output cat
    fi
}

# Shows a command, then runs it.
show() { echo "\$ $*"; "$@"; }

# Repeats a command until it succeeds, for at most five minutes: on an emulated machine each try takes seconds.
until_true() {
    deadline=$(($(date +%s) + 300))
    while [ "$(date +%s)" -lt $deadline ]; do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 1
    done
    echo "never became true: $*"; return 1
}

state() { systemctl show --value --property "$1" drainprof.service; }
active() { [ "$(state ActiveState)" = active ]; }
another_pid() { active && [ "$(state MainPID)" != "$pid" ] && [ "$(state MainPID)" != 0 ]; }
metrics() { curl --silent --fail http://127.0.0.1:9464/metrics; }
counts() { metrics | grep -q '^drainprof_granule_closes_total{.*unit="svc.service".*} [1-9]'; }

install() {
    show dpkg --install drainprof-1.deb || return 1
    getent group drainprof && [ -d /etc/drainprof/conf.d ] && [ "$(stat -c %a /var/lib/drainprof)" = 750 ] || return 1
    # Nobody has asked for it yet.
    ! active && [ "$(systemctl is-enabled drainprof)" = disabled ]
}

doctor() { show drainprof --version && show drainprof doctor; }

why() {
    cp request-server.toml /etc/drainprof/profiles/ 2>/dev/null ||
        { mkdir -p /etc/drainprof/profiles && cp request-server.toml /etc/drainprof/profiles/; }
    systemd-run --quiet --unit svc /opt/check/request_server routing=request requests=1000000 rate=50
    show drainprof why --unit svc.service --duration 10s
    code=$?
    # 5: it cannot be told in so short a time, and the answer says why.
    [ $code = 0 ] || [ $code = 5 ]
}

start() {
    printf '[daemon]\ninterval = "1s"\ndiscover_interval = "1s"\n[listen]\ntoken_file = "/etc/drainprof/token"\n' \
        > /etc/drainprof/conf.d/check.toml
    # The server is a bad one; no window of the daemon's own is to be in the way of the one that is asked for.
    printf '[triggers.dsr_low]\nwindow = false\n' >> /etc/drainprof/conf.d/check.toml
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > /etc/drainprof/token
    chmod 600 /etc/drainprof/token
    show systemctl enable --now drainprof && active && until_true counts
}

page() {
    show curl --silent --fail http://127.0.0.1:9464/status &&
        metrics | grep 'unit="svc.service"' | head -n 3 &&
        curl --silent --fail --header "Authorization: Bearer $(cat /etc/drainprof/token)" \
            http://127.0.0.1:9464/api/v1/targets | grep -q request_server &&
        show drainprof ctl status
}

# A window is an `attach` below the unit, with its symbol helper: both work in the unit's sandbox.
window() {
    show drainprof diagnose --unit svc.service --for 5s --output window.json --format json || return 1
    grep -q '"handle_request"' window.json && show drainprof report window.json | head -n 40
}

sandbox() {
    pid=$(state MainPID)
    grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$pid/status"
    # SYS_ADMIN, SYS_PTRACE, DAC_READ_SEARCH, SETUID, SETGID.
    grep -q '^CapEff:.00000000002800c4$' "/proc/$pid/status" && grep -q '^Seccomp:.2$' "/proc/$pid/status" || return 1
    systemd-analyze security --no-pager drainprof.service | tail -n 1
}

reload() {
    pid=$(state MainPID)
    printf '[store]\nmax_age = "7d"\n' > /etc/drainprof/conf.d/more.toml
    show systemctl reload drainprof || return 1
    until_true sh -c 'journalctl --unit drainprof --output cat | grep -F "changed: store.max_age"' || return 1
    printf 'nonsense\n' > /etc/drainprof/conf.d/more.toml
    systemctl reload drainprof
    until_true sh -c 'journalctl --unit drainprof --output cat | grep -F "stays in force"' || return 1
    rm /etc/drainprof/conf.d/more.toml
    # It is "reloading" until it says that it is ready again.
    systemctl reload drainprof && until_true active && [ "$(state MainPID)" = "$pid" ] && until_true counts
}

killed() {
    pid=$(state MainPID)
    kill -KILL "$pid"
    until_true another_pid && until_true counts
}

watchdog() {
    mkdir -p /etc/systemd/system/drainprof.service.d
    printf '[Service]\nWatchdogSec=10s\n' > /etc/systemd/system/drainprof.service.d/check.conf
    systemctl daemon-reload && systemctl restart drainprof && until_true counts || return 1
    pid=$(state MainPID)
    kill -STOP "$pid"
    until_true another_pid && journalctl --unit drainprof --output cat | grep -i watchdog | tail -n 1
}

# The highest age of the state, in whole seconds, while nothing but that is asked for so many seconds.
oldest() {
    deadline=$(($(date +%s) + $1))
    while [ "$(date +%s)" -lt $deadline ]; do
        metrics | sed -n 's/^drainprof_state_age_seconds \([0-9]*\).*/\1/p'
        sleep 1
    done | sort -n | tail -n 1
}
named() { curl --silent --fail http://127.0.0.1:9464/status | grep -q "^degraded  process $hostile "; }

# Any user's process keeps the kernel from answering for it: `$1` says how. The unit stays active, is not restarted, ends in
# time, and comes up again meanwhile.
silent_by() {
    pid=$(state MainPID) restarts=$(state NRestarts)
    rm -rf fuse && mkdir fuse && mkdir -m 777 fuse/at && mkfifo fuse/hold || return 1
    # It ends with this script's end of the pipe; on a slow machine that takes longer than what follows waits for.
    ./silent "mode=$1" at=/opt/check/fuse/at seconds=1200 < fuse/hold > fuse/log 2>&1 &
    server=$!
    exec 9> fuse/hold
    until_true grep -q '^READY' fuse/log || { cat fuse/log; return 1; }
    hostile=$(sed -n 's/^SILENT //p' fuse/log)
    # exec: since 7.2.7 the kernel closes the file before it takes the lock, and so do Debian 12's newest ones; its
    # 6.1.0-47 and 6.12.100 wait with the lock held.
    # replace: 6.1 and 6.12 map a page without waiting for what it replaces; 7.2 waits.
    if timeout 20 cat "/proc/$hostile/maps" > /dev/null; then
        echo "$1: this kernel answers for the process: nothing to show"
        return 0
    fi
    until_true named || {
        cat fuse/log
        grep -E '^(Name|State)' "/proc/$hostile/status"
        curl --silent --max-time 20 http://127.0.0.1:9464/status
        return 1
    }
    # Longer than the watchdog waits, several times over.
    age=$(oldest 45)
    echo "$1: the state was at most $age s old; $(state NRestarts) restarts, $restarts before"
    active && [ "$(state MainPID)" = "$pid" ] && [ "$(state NRestarts)" = "$restarts" ] || return 1
    [ "$age" -lt 15 ] && counts || return 1
    began=$(date +%s)
    systemctl stop drainprof || return 1
    took=$(($(date +%s) - began))
    echo "$1: ended within $took s, with the result $(state Result)"
    [ "$took" -lt 20 ] && [ "$(state Result)" = success ] || return 1
    systemctl start drainprof && active && until_true counts && until_true named
}
let_go() { ! curl --silent http://127.0.0.1:9464/status | grep -q "^degraded  process $hostile "; }

silent() {
    # The module is loaded by the first who opens the device; so that this one may, it is there before.
    modprobe fuse || return 1
    # Everything that the daemon reads of a process is read often, also where no profile matches.
    printf '[daemon]\npss_budget = "10%%"\n[census]\nbudget = "10%%"\ninterval = "1s"\n[select]\nunmatched = true\n' \
        > /etc/drainprof/conf.d/often.toml
    systemctl restart drainprof && until_true counts || return 1
    for mode in exec replace; do
        silent_by $mode
        result=$?
        # Whatever came of it, nothing hangs after it.
        exec 9>&-
        wait "$server"
        [ $result = 0 ] && until_true let_go || return 1
    done
    rm /etc/drainprof/conf.d/often.toml
}

upgrade() {
    pid=$(state MainPID)
    show dpkg --install drainprof-2.deb && another_pid && until_true counts || return 1
    dpkg-query --show drainprof
    # What was recorded before is still there.
    show drainprof history --since 1h && drainprof history --since 1h | grep -q 'window 1 of request_server'
}

remove() {
    show dpkg --remove drainprof || return 1
    ! active && [ ! -e /usr/bin/drainprof ] && [ -e /var/lib/drainprof/history.db ]
}

purge() {
    show dpkg --purge drainprof || return 1
    # What the administrator wrote stays.
    [ ! -e /var/lib/drainprof ] && [ ! -e /run/drainprof ] && [ -e /etc/drainprof/conf.d/check.toml ]
}

echo "@@drainprof kernel $(uname -r)"
echo "@@drainprof begin systemd"
all="install doctor why start page window sandbox reload killed watchdog silent upgrade remove purge"
for test in $(cat tests 2>/dev/null || echo "$all"); do
    check "$test"
done
[ $failed = 0 ] && result=ok || result=FAILED
echo "test result: $result. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
echo "@@drainprof end systemd $failed"
echo "@@drainprof done"
