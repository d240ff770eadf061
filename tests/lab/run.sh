#!/usr/bin/env bash
# Measures netreplay between two hosts with a real card: the appliance on DPDK, then on the kernel's UDP, the same client.
# docs/lab.md says what is needed, in which order, and what comes out.
#
#   on the server host, as root:
#     run.sh check PCI                 what this host has and lacks; changes nothing
#     run.sh prepare PCI [HUGEPAGES]   reserves hugepages of 2 MiB (default 1024) and binds the card to vfio-pci
#     run.sh serve PCI IP [MTU]        the appliance on the card, polling, until Ctrl-C
#     run.sh restore PCI DRIVER        gives the card back to its kernel driver
#     run.sh serve-kernel IP           the same appliance on kernel UDP, polling, until Ctrl-C
#   on the client host:
#     run.sh tune IFACE [MTU]          as root: MTU, no interrupt moderation, the CPU at its highest clock
#     run.sh measure IP OUT            writes OUT/latency.json, latency.png, calls.txt
#     run.sh compare OUT_DPDK OUT_KERNEL   one table of both
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

netreplay=.venv/bin/netreplay
port=7447
usage() { sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
die() { printf 'run.sh: %s\n' "$*" >&2; exit 1; }
root() { [ "$(id -u)" = 0 ] || die "$action needs root"; }
device() { printf '/sys/bus/pci/devices/%s' "$1"; }
need_device() { [ -d "$(device "$1")" ] || die "there is no PCI device $1: \`lspci -D | grep -i ethernet\` shows those there are"; }
driver_of() { basename "$(readlink "$(device "$1")/driver" 2>/dev/null || echo none)"; }
fact() { printf '%-22s %s\n' "$1" "$2"; }
value() { cat "$1" 2>/dev/null || echo unknown; }

# The last core of the card's own memory node: the loop's. It should be isolated (isolcpus, nohz_full) for honest tails.
core_near() {
    local node list
    node=$(value "$(device "$1")/numa_node")
    list=$(value "/sys/devices/system/node/node$([ "$node" -ge 0 ] 2>/dev/null && echo "$node" || echo 0)/cpulist")
    printf '%s' "${list##*[,-]}"
}

check() {
    local pci=$1 path
    need_device "$pci"
    path=$(device "$pci")
    fact card "$(lspci -s "$pci" 2>/dev/null | cut -d' ' -f2- || echo unknown)"
    fact driver "$(driver_of "$pci")"
    fact "memory node" "$(value "$path/numa_node")"
    fact "link" "$(value "$path/current_link_speed") x$(value "$path/current_link_width")"
    fact "core for the loop" "$(core_near "$pci")"
    fact "isolated cores" "$(value /sys/devices/system/cpu/isolated)"
    fact "hugepages free" "$(value /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages) of 2 MiB"
    fact "IOMMU groups" "$(find /sys/kernel/iommu_groups -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)"
    fact "vfio-pci" "$(modinfo -F filename vfio-pci 2>/dev/null || echo 'not in this kernel')"
    fact "clock governor" "$(value /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor)"
    fact netreplay "$($netreplay version | tr '\n' ' ')"
    [ "$(find /sys/kernel/iommu_groups -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)" -gt 0 ] ||
        echo "no IOMMU: boot with intel_iommu=on iommu=pt (or amd_iommu=on), or use vfio's unsafe mode knowingly"
}

prepare() {
    local pci=$1 pages=${2:-1024} got
    root
    need_device "$pci"
    echo "$pages" >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
    got=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages)
    [ "$got" -ge "$pages" ] || die "the kernel gave $got of $pages hugepages: reserve them at boot (hugepages=$pages)"
    modprobe vfio-pci
    echo "run.sh: $pci was bound to $(driver_of "$pci"); give it back with: run.sh restore $pci $(driver_of "$pci")"
    bind_to "$pci" vfio-pci
}

bind_to() {
    local pci=$1 driver=$2
    [ "$(driver_of "$pci")" = none ] || echo "$pci" >"$(device "$pci")/driver/unbind"
    echo "$driver" >"$(device "$pci")/driver_override"
    echo "$pci" >/sys/bus/pci/drivers_probe
    [ "$(driver_of "$pci")" = "$driver" ] || die "$pci is bound to $(driver_of "$pci"), not to $driver: see dmesg"
    echo "run.sh: $pci is bound to $driver"
}

restore() {
    root
    need_device "$1"
    bind_to "$1" "$2"
    echo >"$(device "$1")/driver_override"
}

# Cards of the mlx5 kind stay with their kernel driver: DPDK shares them.
serve() {
    local pci=$1 ip=$2 mtu=${3:-1500} config
    need_device "$pci"
    config=$(mktemp)
    trap 'rm -f "$config"' EXIT
    cat tests/lab/lab.toml - >"$config" <<TOML
[server]
auth = "off"
poll = "busy"
core = $(core_near "$pci")
[port.lab]
device = "$pci"
ip4 = "$ip"
port = $port
mtu = $mtu
[eal]
hugepages = true
memory = "512 MiB"
TOML
    $netreplay serve -c "$config" --print-eal
    $netreplay serve -c "$config" -v
}

serve_kernel() {
    $netreplay serve -c tests/lab/lab.toml --auth off --poll busy --listen "udp://$1:$port" -v
}

tune() {
    local interface=$1 mtu=${2:-1500}
    root
    ip link set "$interface" mtu "$mtu" up
    ethtool -C "$interface" adaptive-rx off rx-usecs 0 tx-usecs 0 || echo "run.sh: interrupt moderation stays as it is"
    ethtool -k "$interface" | grep -E 'tx-udp-segmentation|rx-udp-gro-forwarding|generic-(segmentation|receive)'
    if command -v cpupower >/dev/null; then cpupower frequency-set -g performance >/dev/null; fi
}

measure() {
    local ip=$1 out=$2
    mkdir -p "$out"
    ping -c 3 -q "$ip" | tail -2
    $netreplay latency "udp://$ip:$port" --table atari --poll busy --json "$out/latency.json" --plot "$out/latency.png" |
        tee "$out/calls.txt"
    $netreplay tables "udp://$ip:$port"
}

compare() {
    .venv/bin/python - "$1/latency.json" "$2/latency.json" <<'PY'
import json, sys
one, two = (json.load(open(path)) for path in sys.argv[1:3])
if not (one["complete"] and two["complete"]):
    print("run.sh: a measurement was not complete: compare with care")
others = {operation["name"]: operation["results"][0] for operation in two["operations"]}
for operation in one["operations"]:
    name, a = operation["name"], operation["results"][0]
    b = others.get(name)
    if a is None or b is None:
        print(f"{name:8} not measured on both")
        continue
    a, b = (result["percentiles"]["p50"] for result in (a, b))
    if a is None or b is None:
        print(f"{name:8} too few calls for a median")
        continue
    print(f"{name:8} p50 {a:9.1f} us   against {b:9.1f} us   {100 * (a / b - 1):+.0f} %")
PY
}

[ $# -ge 1 ] || { usage >&2; exit 2; }
action=$1
shift
case $action in
check | prepare | serve | restore | tune | measure | compare) [ $# -ge 1 ] || { usage >&2; exit 2; }; "$action" "$@" ;;
serve-kernel) [ $# -ge 1 ] || { usage >&2; exit 2; }; serve_kernel "$@" ;;
*) usage >&2; exit 2 ;;
esac
