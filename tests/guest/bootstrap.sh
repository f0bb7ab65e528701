# Sourced by what makes Debian systems to chroot into: which archive there is, and how a system comes out of it.
#
# `mirror` is the archive that this machine's apt uses; it serves Debian's other releases too. `bootstrap RELEASE PACKAGES
# TREE [mmdebstrap's arguments]` installs into TREE, as root, and leaves its log in TREE.log; what fails is shown.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

archive() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' 'Label: Debian' | head -n 1
}

find_mirror() {
    mirror=$(archive)
    if [ -z "$mirror" ]; then
        "$repository/tests/setup/packages.sh" --refresh
        mirror=$(archive)
    fi
    [ -n "$mirror" ] || die "apt has no Debian archive in its sources"
}

bootstrap() {
    local release=$1 packages=$2 tree=$3
    shift 3
    timeout 1200 mmdebstrap --quiet --mode=root --variant=essential --components=main --include="$packages" \
        --aptopt='APT::Install-Recommends "false"' --aptopt='APT::Sandbox::User "root"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*' \
        "$@" "$release" "$tree" "$mirror" >"$tree.log" 2>&1 || { cat "$tree.log" >&2; return 1; }
    # There is no resolver where these boot, and old cloud-init waits half a minute for one.
    sed -i 's/^hosts:.*/hosts: files/' "$tree/etc/nsswitch.conf"
}
