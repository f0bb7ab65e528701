#!/usr/bin/env bash
# Makes what the clients of the table come from, below target/clients: build.sh.
#
# In: the archives of Debian, of Python's, Rust's and Go's packages. Out, each with a stamp of its own, so that a second call
# finds it: `sid`, a Debian of today with its cloud-init and systemd-imds; `tools`, a Debian 13 with clients in it; and `own`,
# what Debian does not have (afterburn, cloudbase-init, programs around the AWS SDK and OpenBao). The systems belong to
# root, as their files must. What cannot be had does not end this: it is told, and its cells are lacking by the same words
# (`NAME.lacking`).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/clients
PATH=$PATH:/usr/sbin:/sbin

sid=cloud-init,dhcpcd-base,iproute2,passwd,mount,procps,sudo,systemd,systemd-imds
# The last ones are what cloudbase-init stands on.
tools=iproute2,passwd,mount,procps,openssl,python3-botocore,facter,ohai,libssl3t64
tools+=,python3-oslo.config,python3-oslo.log,python3-untangle,python3-netaddr,python3-requests,python3-serial,python3-jinja2,python3-yaml,python3-pbr,python3-cryptography
afterburn_version=5.11.0
cloudbase_version=1.1.9

die() { printf 'clients: %s\n' "$1" >&2; exit 1; }
say() { printf 'clients: %s\n' "$1"; }

. "$root/tests/guest/bootstrap.sh"

# make_once NAME INPUTS COMMAND…: runs it unless NAME has been made from the same inputs; its words go to NAME.log.
make_once() {
    local name=$1 stamp
    stamp=$(printf '%s\n' "$2" | cksum)
    shift 2
    [ "$(cat "$out/$name.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    local began=$SECONDS
    say "making $name"
    rm -f "$out/$name.stamp" "$out/$name.lacking"
    # Aside: as a condition nothing that fails in it would end it.
    ("$@") >"$out/$name.said" 2>&1 &
    if wait $!; then
        printf '%s\n' "$stamp" >"$out/$name.stamp"
        say "$name is ready after $((SECONDS - began)) s"
    else
        tail -n 5 "$out/$name.said" >&2
        printf '%s cannot be made: %s\n' "$name" "$(tail -n 1 "$out/$name.said")" >"$out/$name.lacking"
        say "$name cannot be made; all that was said is in $out/$name.said"
    fi
}

make_tree() {
    local name=$1 release=$2 packages=$3
    shift 3
    rm -rf "${out:?}/$name" "$out/$name.new"
    bootstrap "$release" "$packages" "$out/$name.new" "$@"
    mv "$out/$name.new" "$out/$name"
}

make_trees() {
    find_mirror
    # The archive of today may be a picture of yesterday's, whose lists say that they are too old.
    make_once sid "$sid $(cksum <"$root/tests/guest/bootstrap.sh")" \
        make_tree sid sid "$sid" --aptopt='Acquire::Check-Valid-Until "false"'
    make_once tools "$tools $(cksum <"$root/tests/guest/bootstrap.sh")" make_tree tools trixie "$tools"
}

make_afterburn() {
    timeout 1800 cargo install --locked afterburn --version "$afterburn_version" --root "$out/afterburn"
    install -D "$out/afterburn/bin/afterburn" "$out/own/afterburn"
}

make_sdk() {
    # cargo's own settings for the tests are not for another workspace.
    timeout 1800 env -u CARGO_TARGET_DIR cargo build --locked --manifest-path "$here/sdk/Cargo.toml" --target-dir "$out/sdk"
    install -D "$out/sdk/debug/imds-by-sdk" "$out/own/imds-by-sdk"
}

# Go is not ours to install: it must be as new as OpenBao's, and Debian's is older.
make_openbao() {
    command -v go >/dev/null || { echo "no go in PATH; $(sed -n 's/^go /Go /p' "$here/openbao/go.mod") or later is needed"; return 1; }
    cd "$here/openbao"
    timeout 1800 go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$out/openbao/login-by-openbao" .
    install -D "$out/openbao/login-by-openbao" "$out/own/login-by-openbao"
}

make_cloudbase() {
    rm -rf "$out/own/cloudbase"
    timeout 300 python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --no-compile \
        --target "$out/own/cloudbase" "cloudbase-init==$cloudbase_version"
}

if [ "${1:-}" = --trees ]; then
    make_trees
    exit 0
fi

for tool in apt-get mmdebstrap cargo python3; do
    command -v "$tool" >/dev/null || die "$tool is missing; run: tests/setup/packages.sh build test clients"
done
mkdir -p "$out/own"
if [ "$(id -u)" = 0 ]; then
    make_trees
else
    command -v sudo >/dev/null || die "a system's files belong to root: run this as root or with sudo"
    sudo ${CI:+-n} "$0" --trees
fi
make_once cloudbase-init "$cloudbase_version" make_cloudbase
make_once sdk "$(cat "$here"/sdk/Cargo.{toml,lock} "$here"/sdk/src/*)" make_sdk
make_once openbao "$(cat "$here"/openbao/{go.mod,go.sum,main.go})" make_openbao
make_once afterburn "$afterburn_version" make_afterburn
