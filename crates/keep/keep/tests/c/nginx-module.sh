#!/bin/sh
# Compiles ngx_crash.c for the installed nginx: nginx-module.sh FOLDER makes FOLDER/crash.so, once for each version. Needs cc and Debian's nginx-dev.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
headers=/usr/share/nginx/src
nginx=$(command -v nginx || echo /usr/sbin/nginx)
# Again for another nginx: it loads modules of its own version only.
version=$("$nginx" -v 2>&1)
[ ! -e "$folder/crash.so" ] || [ "$(cat "$folder/version" 2>/dev/null)" != "$version" ] || exit 0
mkdir -p "$folder"
cd "$(mktemp -d "$folder/build.XXXXXX")"
trap 'rm -rf "$PWD"' EXIT
cp -r "$headers/." .
./configure --with-compat --with-debug --with-threads --without-pcre --without-http_rewrite_module --without-http_gzip_module >configure.log 2>&1
# What the installed one was compiled with changes structures; of its libraries only this name is needed.
echo 'typedef struct pcre2_code pcre2_code;' >pcre2.h
signature=$(grep -ao '8,4,8,[01]*' "$nginx" | head -n 1)
cc -O1 -fPIC -shared -DNGX_PCRE=1 -DNGX_PCRE2=1 -DNGX_HTTP_GZIP=1 "-DSIGNATURE=\"$signature\"" -I. -Iobjs -Isrc/core -Isrc/event \
    -Isrc/event/modules -Isrc/os/unix -Isrc/http -Isrc/http/modules "$here/ngx_crash.c" -o crash.so
mv crash.so "$folder/crash.so"
echo "$version" >"$folder/version"
