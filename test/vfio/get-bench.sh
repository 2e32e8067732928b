#!/bin/sh
# get-bench.sh DIR
#
# Puts what the VFIO bench runs on into DIR: QEMU 10.1 or newer (with
# vfio-user-pci), a Debian kernel with its modules, and a static busybox.
# Nothing is installed on the machine: apt works on a state of its own inside
# DIR, and the packages are only unpacked. The mirror is the one that the
# machine's own apt uses; BENCH_MIRROR names another. Needs about 300 MB.
set -eu

suite=${BENCH_SUITE:-trixie}
dir=${1:?usage: get-bench.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
[ -e "$dir/complete" ] && exit 0

say() { echo "get-bench: $*" >&2; }

# own_mirror prints the address of the first Debian archive in apt's sources.
own_mirror() {
	apt-get indextargets --format '$(SITE) $(CODENAME) $(ORIGIN)' 2>/dev/null |
		awk '$3 == "Debian" && $2 !~ /security/ { print $1; exit }'
}

# listed_mirror does the same from the source files, for a machine whose lists
# have been thrown away.
listed_mirror() {
	cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
		/etc/apt/sources.list.d/*.sources 2>/dev/null |
		grep -v '^ *#' | grep -Eo 'https?://[^ ]*/debian/?( |$)' | head -n 1
}

mirror=${BENCH_MIRROR:-$(own_mirror)}
mirror=${mirror:-$(listed_mirror)}
mirror=$(echo "$mirror" | tr -d ' ')
if [ -z "$mirror" ]; then
	say "apt's sources name no Debian archive; set BENCH_MIRROR"
	exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -e "$keyring" ]; then
	say "$keyring is missing: install debian-archive-keyring"
	exit 1
fi

state=$dir/apt
rm -rf "$dir/root" "$state"
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/etc" "$dir/root"
: >"$state/status"
cat >"$state/etc/sources.list" <<SOURCES
deb [signed-by=$keyring] $mirror $suite main
deb [signed-by=$keyring] $mirror $suite-backports main
SOURCES

private_apt() {
	command=$1
	shift
	"$command" -q \
		-o Dir::Etc="$state/etc" -o Dir::Etc::SourceList="$state/etc/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Parts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State="$state" -o Dir::State::Lists="$state/lists" -o Dir::State::Status="$state/status" \
		-o Dir::Cache="$state/cache" -o Dir::Cache::Archives="$state/cache/archives" \
		-o APT::Install-Recommends=false -o APT::Architecture=amd64 \
		-o APT::Sandbox::User=root -o Debug::NoLocking=true \
		-o Acquire::Retries=3 -o Acquire::Languages=none "$@"
}

say "reading the package lists of $suite"
private_apt apt-get update >"$dir/apt.log"
kernel=$(private_apt apt-cache depends linux-image-cloud-amd64 |
	awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
say "fetching QEMU from $suite-backports, $kernel and busybox"
private_apt apt-get -y -d install -t "$suite-backports" qemu-system-x86 >>"$dir/apt.log"
(cd "$state/cache/archives" &&
	private_apt apt-get download "$kernel" busybox-static >>"$dir/apt.log")
for deb in "$state"/cache/archives/*.deb; do
	dpkg-deb -x "$deb" "$dir/root"
done
rm -rf "$state"
touch "$dir/complete"
say "done: $(du -sh "$dir/root" | cut -f 1)"
