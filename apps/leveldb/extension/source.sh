#!/bin/sh
# Gets Debian's source package of the LevelDB that is installed, for its private headers, into a directory. Needs no root, and
# changes nothing of the system's package lists: it has lists of its own.
#
#   source.sh DIRECTORY       afterwards there is DIRECTORY/leveldb-1.23
set -eu
directory=$1
version=$(dpkg-query -W -f '${source:Version}' libleveldb-dev)
case $version in
1.23-*) ;;
*) echo "source.sh: libleveldb-dev is $version: the port knows 1.23" >&2 && exit 1 ;;
esac
mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial"
cd "$directory"
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# The archive that this machine installs from.
mirror=$(sed -n 's/^URIs: *//p; s/^deb  *\(\[[^]]*\]  *\)\{0,1\}\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
[ -n "$mirror" ] || { echo "source.sh: no package archive is configured for apt-get" >&2 && exit 1; }
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >sources.list
get() {
    apt-get -q -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$PWD/lists" \
        -o Dir::Cache="$PWD/cache" "$@"
}
if ! { get update && get source --download-only "leveldb=$version"; } >log 2>&1; then
    cat log >&2
    exit 1
fi
rm -rf leveldb-1.23
tar -xzf leveldb_1.23.orig.tar.gz
