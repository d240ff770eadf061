#!/usr/bin/env bash
# Two hosts on one wire: a network namespace each, a veth pair between them. Needs root, iproute2 and ethtool.
#
#     NAME-server, eth0                     NAME-client, eth0
#     192.0.2.1/24      ---- veth pair ----     192.0.2.2/24
#     2001:db8::1/64                         2001:db8::2/64
#
#     netns.sh up NAME [MTU]          builds it and returns when both addresses of both hosts can be used
#     netns.sh down NAME              ends what still runs in it, and takes it away
#     netns.sh run NAME COMMAND...    up, the command, down: whatever happens to the command or to this script
#
# NAME is the caller's choice, of at most 40 letters, digits and dashes: with a process id in it no two runs meet.
# Nothing outside the two namespaces is touched: the veth pair is made inside them.
set -euo pipefail

hosts=(server client)
patience=15 # seconds for the addresses to become usable
usage() { sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
die() { printf 'netns.sh: %s\n' "$*" >&2; exit 1; }
in_host() { ip netns exec "$name-$1" "${@:2}"; }
exists() { [ -e "/run/netns/$name-$1" ]; }
refuse_a_second() {
    local host
    for host in "${hosts[@]}"; do
        ! exists "$host" || die "$name-$host exists already: choose another name, or netns.sh down $name"
    done
}

# An IPv6 address is tentative until nobody else on the wire has claimed it, and cannot be bound to before.
settled() {
    local host
    for host in "${hosts[@]}"; do
        ip -n "$name-$host" -o link show dev eth0 | grep -q 'state UP' || return 1
        [ -z "$(ip -n "$name-$host" -6 -o address show dev eth0 tentative)" ] || return 1
    done
}

up() {
    local mtu=${1:-1500} host number=0 end
    for host in "${hosts[@]}"; do
        ip netns add "$name-$host"
        # An interface that goes down and comes up again keeps its IPv6 addresses, as it keeps those of IPv4.
        in_host "$host" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down'
        # Every datagram to a closed port is answered, not only the first six and then one a second.
        in_host "$host" sh -c 'echo 0 | tee /proc/sys/net/ipv4/icmp_ratelimit >/proc/sys/net/ipv6/icmp/ratelimit'
    done
    ip link add eth0 netns "$name-server" mtu "$mtu" type veth peer name eth0 netns "$name-client" mtu "$mtu"
    for host in "${hosts[@]}"; do
        number=$((number + 1))
        # A datagram is then one packet of at most the MTU with a true checksum, as on a real wire.
        in_host "$host" ethtool -K eth0 tx off gso off gro off >/dev/null
        ip -n "$name-$host" address add "192.0.2.$number/24" dev eth0
        ip -n "$name-$host" address add "2001:db8::$number/64" dev eth0
        ip -n "$name-$host" link set lo up
        ip -n "$name-$host" link set eth0 up
    done
    end=$((SECONDS + patience))
    until settled; do
        [ "$SECONDS" -lt "$end" ] || die "after $patience s not settled: $(ip -n "$name-server" -o address show dev eth0)"
        sleep 0.02
    done
}

down() {
    local host pid
    for host in "${hosts[@]}"; do
        exists "$host" || continue
        for pid in $(ip netns pids "$name-$host"); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns delete "$name-$host" || true
    done
}

child=
clean_up() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then kill "$child" 2>/dev/null || true; fi
    down
}

[ $# -ge 2 ] || { usage >&2; exit 2; }
action=$1 name=$2
shift 2
[[ $name =~ ^[A-Za-z0-9-]{1,40}$ ]] || die "the name '$name' is not 1 to 40 letters, digits and dashes"
[ "$(id -u)" = 0 ] || die "making network namespaces needs root"
for tool in ip ethtool; do
    command -v "$tool" >/dev/null || die "no $tool here: apt-get install iproute2 ethtool"
done

case $action in
up)
    refuse_a_second
    trap down EXIT
    up "$@"
    trap - EXIT
    ;;
down) down ;;
run)
    [ $# -ge 1 ] || { usage >&2; exit 2; }
    refuse_a_second
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    up
    "$@" <&0 &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    exit "$status"
    ;;
*) usage >&2; exit 2 ;;
esac
