# Network namespaces, uxfrm gateways and a capture for the examples, to be sourced. What it makes goes when the script
# ends, however it ends.
#
#   10.1.0.2                                                                10.2.0.2
#   ┌ left-host ┐    ┌ left ───────────┐               ┌ right ──────────┐    ┌ right-host ┐
#   │      eth0 ┼────┼ lan0      wire0 ┼───────────────┼ wire0      lan0 ┼────┼ eth0       │
#   └───────────┘    └─────────────────┘               └─────────────────┘    └────────────┘
#                    10.1.0.1   10.9.0.1               10.9.0.2   10.2.0.1
#
# With a NAT between, `left` is 192.168.9.2, and what it sends arrives at 10.9.0.2 from 10.9.0.9.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d /tmp/uxfrm-example.XXXXXX)
prefix=uxe$$
namespaces=()
processes=()

fail() {
	echo "$*" >&2
	exit 1
}

# Ends what was started, the last first, and deletes the namespaces.
clean_up() {
	local status=$? index
	for ((index = ${#processes[@]} - 1; index >= 0; index--)); do
		kill "${processes[index]}" 2>/dev/null || continue
		wait "${processes[index]}" 2>/dev/null || true
	done
	for name in "${namespaces[@]}"; do
		ip netns delete "$prefix-$name"
	done
	rm -rf "$work"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints a heading.
say() {
	printf '\n\033[1m%s\033[0m\n' "$*"
}

# Shows a command as one would type it at that host, and runs it there.
at() {
	local name=$1
	shift
	printf '%s# %s\n' "$name" "$*"
	inside "$name" "$@"
}

inside() {
	local name=$1
	shift
	ip netns exec "$prefix-$name" "$@"
}

# Waits until a command succeeds.
until_true() {
	local tries
	for ((tries = 0; tries < 200; tries++)); do
		! "$@" 2>/dev/null || return 0
		sleep 0.05
	done
	fail "waited for 10 s in vain: $*"
}

namespace() {
	ip netns add "$prefix-$1"
	namespaces+=("$1")
	ip -n "$prefix-$1" link set lo up
	inside "$1" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
}

# link LEFT DEVICE ADDRESS RIGHT DEVICE ADDRESS
link() {
	ip -n "$prefix-$1" link add "$2" type veth peer name "$5" netns "$prefix-$4"
	ip -n "$prefix-$1" address add "$3" dev "$2"
	ip -n "$prefix-$4" address add "$6" dev "$5"
	ip -n "$prefix-$1" link set "$2" up
	ip -n "$prefix-$4" link set "$5" up
}

# route NAME GATEWAY
route() {
	ip -n "$prefix-$1" route add default via "$2"
}

site() {
	namespace "$1"
	namespace "$1-host"
	link "$1" lan0 "$2.1/24" "$1-host" eth0 "$2.2/24"
	route "$1-host" "$2.1"
}

# The network above.
build_network() {
	site left 10.1.0
	site right 10.2.0
	link left wire0 10.9.0.1/24 right wire0 10.9.0.2/24
	route left 10.9.0.2
	route right 10.9.0.1
}

# The same, with a router that hides `left`.
build_network_with_nat() {
	site left 10.1.0
	site right 10.2.0
	namespace router
	link left wire0 192.168.9.2/24 router inside 192.168.9.1/24
	link router outside 10.9.0.9/24 right wire0 10.9.0.2/24
	route left 192.168.9.1
	inside router nft 'table ip nat { chain out { type nat hook postrouting priority srcnat; oifname "outside" masquerade; }; }'
}

# Runs a command whose words matter only when it fails.
quietly() {
	"$@" >"$work/quiet" 2>&1 || fail "$(cat "$work/quiet")"
}

# Starts something at a host in the background, its output in a file of this name.
declare -A process_of
start() {
	local name=$1 log=$2
	shift 2
	# Not by `inside`: the process to be ended is the program itself, not a shell around it.
	ip netns exec "$prefix-$name" "$@" >"$work/$log" 2>&1 </dev/null &
	processes+=($!)
	process_of[$log]=$!
}

# uxfrm, and beside it the library that it preloads: this repository's, if it is built; else the installed one; else
# this repository's is built.
find_uxfrm() {
	local target=${CARGO_TARGET_DIR:-$repository/target} built
	if [ -z "${UXFRM-}" ]; then
		for built in "$target"/{release,debug}; do
			[ -z "${UXFRM-}" ] && [ -x "$built/uxfrm" ] && [ -e "$built/libuxfrm_redirect.so" ] && UXFRM=$built/uxfrm
		done
	fi
	[ -n "${UXFRM-}" ] || UXFRM=$(command -v uxfrm) || true
	if [ -z "${UXFRM-}" ]; then
		echo "no uxfrm is built here or installed: building it" >&2
		(cd "$repository" && cargo build --locked --release -p uxfrm-cli -p uxfrm-redirect)
		UXFRM=$target/release/uxfrm
	fi
	UXFRM=$(realpath "$UXFRM")
}

# Starts uxfrm at a host.
gateway() {
	mkdir "$work/$1"
	cp "$repository/examples/gateway.toml" "$work/$1/"
	start "$1" "$1.uxfrm" "$UXFRM" run "$work/$1/gateway.toml"
	until_true grep -q 'uxfrm: ready' "$work/$1.uxfrm"
}

# Writes down all that passes between the gateways, as `right` sees it, until `show_wire`.
capture() {
	start right capture tcpdump --immediate-mode -U -n -i wire0 -w "$work/wire.pcap"
	until_true grep -q 'listening on' "$work/capture"
}

# Shows what was captured, and fails if any of it was plain.
show_wire() {
	local clear='not (esp or arp or udp port 500 or udp port 4500)' protected='esp or (udp port 4500 and udp[8:4] != 0)'
	sleep 0.3
	kill "${process_of[capture]}"
	wait "${process_of[capture]}" 2>/dev/null || true
	say "On the wire between the gateways: $(count "$protected") packets of ESP, $(count "$clear") of anything but ESP and IKE"
	tcpdump -n -t -c "${1:-12}" -r "$work/wire.pcap" 2>/dev/null
	[ "$(count "$protected")" -gt 0 ] || fail "No ESP."
	[ "$(count "$clear")" = 0 ] || fail "Something passed in the clear: $(tcpdump -n -r "$work/wire.pcap" -c 5 "$clear" 2>/dev/null)"
}

count() {
	tcpdump -n -r "$work/wire.pcap" "$1" 2>/dev/null | wc -l
}

needs() {
	local program
	[ "$(id -u)" = 0 ] || fail "This needs root, for network namespaces."
	for program in ip ping tcpdump "$@"; do
		command -v "$program" >/dev/null || fail "This needs $program: scripts/prerequisites test installs it."
	done
}
