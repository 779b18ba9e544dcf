# What ./run and ./test need: a Rust toolchain, a linker, the judges. To be sourced by a POSIX shell that stands in
# the root of the repository.
#
# As root on Debian or Ubuntu missing packages are installed; otherwise it is said what is missing and what is
# skipped for want of it. Nothing is changed outside of the package manager and ~/.cargo, ~/.rustup.

# The oldest compiler that builds this: 1.N.
RUST_MINOR_MIN=$(sed -n 's/^rust-version = "1\.\([0-9]*\).*/\1/p' Cargo.toml)

say() { printf '%s\n' "$*" >&2; }

die() { say "$*"; exit 1; }

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" = 0 ]; }

# Installs Debian packages if we may; false if they are not there afterwards.
install_packages() {
    is_root && have apt-get || return 1
    say "installing: $*"
    [ -n "$apt_updated" ] || { timeout -k 30 300 apt-get update -qq >&2 || true; apt_updated=1; }
    DEBIAN_FRONTEND=noninteractive timeout -k 30 600 apt-get install -y -qq --no-install-recommends "$@" >&2
}
apt_updated=

# need COMMAND PACKAGE...: makes sure that a command is there.
need() {
    command=$1
    shift
    have "$command" || install_packages "$@" || true
    have "$command"
}

rust_is_new_enough() {
    have cargo && have rustc || return 1
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$RUST_MINOR_MIN" ]
}

# Makes sure that there is a toolchain: the one that is there, Debian's rustup, or the one of rustup's authors.
need_rust() {
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    export PATH
    rust_is_new_enough && return
    have rustup || install_packages rustup ca-certificates || true
    if ! have rustup; then
        need curl curl ca-certificates || die "no Rust 1.$RUST_MINOR_MIN or later, and no curl to fetch it: install either"
        say "installing Rust with rustup (into ~/.cargo and ~/.rustup)"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --profile minimal --no-modify-path ||
            die "rustup could not be fetched: install Rust 1.$RUST_MINOR_MIN or later"
    fi
    rust_is_new_enough || rustup default stable >&2 || die "no Rust toolchain could be installed"
    rust_is_new_enough || die "this needs Rust 1.$RUST_MINOR_MIN or later; \`rustup default stable\` or \`rustup update\`"
}

# Everything that building needs.
need_build() {
    need cc gcc libc6-dev || die "a C compiler is needed as linker: install gcc and libc6-dev"
    need_rust
}

# True if real mounts can be made; says why not.
can_mount() {
    is_root || { say "SKIPPED: mounts (not root)"; return 1; }
    # In containers the module may be there and the device not.
    [ -e /dev/fuse ] || { have modprobe && modprobe fuse 2>/dev/null; }
    [ -e /dev/fuse ] || { say "SKIPPED: mounts (no /dev/fuse)"; return 1; }
}

# True if the reference checker is there; says if not.
have_e2fsck() {
    PATH=$PATH:/sbin:/usr/sbin
    need e2fsck e2fsprogs || { say "SKIPPED: e2fsck (install e2fsprogs)"; return 1; }
}

# The same for F2FS.
have_fsck_f2fs() {
    PATH=$PATH:/sbin:/usr/sbin
    need fsck.f2fs f2fs-tools || { say "SKIPPED: fsck.f2fs, mkfs.f2fs, dump.f2fs (install f2fs-tools)"; return 1; }
}
