# shellcheck shell=bash
# Shared by the scripts: messages, root privileges, and installing missing packages.
# A script sources it after `set -euo pipefail`. It changes the working directory to the repository's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# shellcheck disable=SC2034 # used by the scripts that source this
target_dir=${CARGO_TARGET_DIR:-target}

say() { printf '==> %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# ask_for_root REASON...: true if as_root may run commands from here on. Prints the reasons first. VMIO_NO_ROOT=1 answers no for the user.
ask_for_root() {
    if is_root; then return 0; fi
    if [ -n "${VMIO_NO_ROOT:-}" ] || ! have sudo; then return 1; fi
    say "Root privileges are needed for:"
    printf '      - %s\n' "$@"
    if [ -t 0 ]; then sudo -v; else sudo -n true 2>/dev/null; fi
}

# as_root COMMAND...: runs a command as root, after ask_for_root. Never asks again: without the privilege it fails.
as_root() { if is_root; then "$@"; else sudo -n "$@"; fi; }

# missing_packages COMMAND=PACKAGE...: prints the packages whose command is not installed, one on each line.
missing_packages() {
    local pair
    for pair in "$@"; do
        have "${pair%%=*}" || printf '%s\n' "${pair#*=}"
    done | sort -u
}

# install_packages PACKAGE...: installs them with apt, as root.
install_packages() {
    have apt-get || return 1
    say "Installing $*"
    as_root timeout 300 apt-get update -q &&
        as_root env DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -q -y --no-install-recommends "$@"
}

# require_rust: checks that the toolchain is at least $rust_wanted or the workspace's version; rustup updates an old one.
require_rust() {
    local wanted=${rust_wanted:-} found
    if ! have cargo && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        export PATH
    fi
    [ -n "$wanted" ] || wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have cargo || die "found no Rust toolchain: install rustup, then Rust $wanted or newer, and run this again"
    found=$(rustc --version | awk '{ print $2 }')
    if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]; then return 0; fi
    have rustup || die "Rust $found is installed, $wanted or newer is needed"
    say "Rust $found is installed, $wanted or newer is needed: updating it"
    rustup update stable --no-self-update
}

# has_rocksdb: whether programs can be linked with RocksDB.
has_rocksdb() { printf '#include <rocksdb/c.h>\n' | c++ -E -x c++ - >/dev/null 2>&1; }

# install_nextest: the test runner, in the version of scripts/nextest.txt. If there is no binary for this machine, it is built from source, which takes minutes.
install_nextest() {
    local tools version
    tools=$(realpath -m "$target_dir/tools")
    version=$(sed -n 's/.*==\([0-9.]*\).*/\1/p' scripts/nextest.txt)
    export PATH="$tools/bin:$tools/nextest/bin:$PATH"
    if [[ $(cargo nextest --version 2>/dev/null) == "cargo-nextest $version"* ]]; then return 0; fi
    say "Installing nextest $version into $target_dir/tools"
    rm -rf "$tools/nextest"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --target "$tools/nextest" --requirement scripts/nextest.txt ||
        cargo install --locked --root "$tools" --version "$version" cargo-nextest
}
