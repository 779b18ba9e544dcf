#!/bin/sh
# First contact: the lines that users type in the first ten minutes, as root and as an ordinary user, with wrong arguments and full disks.
# Each has its exit code and a part of what it says. TRANSCRIPT=FILE keeps all that was typed and said.
# usage: contact.sh [ext2|f2fs|ext3|ext4]

. "$(dirname "$0")/common"
choose "$@"
case $maker in
mke2fs | mkfs.f2fs) skip "it types moafs mkfs" ;;
esac

transcript=${TRANSCRIPT:-$work/transcript}
TZ=UTC-1
export TZ
chmod 755 "$work"
cp "$MOAFS" "$work/moafs"
as=
size=128M

# types CODE TEXT COMMAND...: the command ends with that code and says that.
types() {
    code=$1
    text=$2
    shift 2
    got=0
    $as "$@" >"$work/said" 2>&1 </dev/null || got=$?
    { echo "\$ $*"; cat "$work/said"; [ "$got" = 0 ] || echo "[$got]"; } >>"$transcript"
    [ "$got" = "$code" ] || { cat "$work/said"; fail "exit code $got, not $code: $*"; }
    [ -z "$text" ] || grep -qF -e "$text" "$work/said" || { cat "$work/said"; fail "does not say '$text': $*"; }
    ! grep -q "os error\|panicked" "$work/said" || { cat "$work/said"; fail "the words are not for users: $*"; }
}

# silent COMMAND...: the command succeeds and says nothing.
silent() {
    types 0 "" "$@"
    [ ! -s "$work/said" ] || { cat "$work/said"; fail "says something: $*"; }
}

volumes() {
    m=$work/moafs
    d=$1
    $as mkdir "$d"
    types 0 "would be" "$m" mkfs -n -t "$maker" "$d/v.img" 1.5G
    types 1 "give a SIZE" "$m" mkfs -t "$maker" "$d/v.img"
    types 1 "powers of 1024" "$m" mkfs -t "$maker" "$d/v.img" 12X
    case $maker in
    ext2 | ext3) types 1 "too many" "$m" mkfs -n -t "$maker" "$d/v.img" 100T ;;
    f2fs) types 1 "does not fit" "$m" mkfs -n -t "$maker" "$d/v.img" 100T ;;
    ext4) types 0 "100 TiB" "$m" mkfs -n -t "$maker" "$d/v.img" 100T ;;
    esac
    types 0 "an $maker volume" "$m" mkfs -t "$maker" -L first "$d/v.img" $size
    types 1 "volume (first); -F overwrites it" "$m" mkfs -t "$maker" "$d/v.img"
    types 0 "which is overwritten" "$m" mkfs -F -t "$maker" "$d/v.img"

    $as sh -c "mkdir -p '$d/tree/sub' && echo one >'$d/tree/one' && echo two >'$d/tree/sub/two' && ln -s one '$d/tree/link'"
    $as sh -c "ln -s ../one '$d/tree/sub/up' && ln -s sub '$d/tree/way'"
    silent "$m" cp -r "$d/tree" "$d/v.img:/"
    types 0 "'$d/tree/one' -> '$d/v.img:/one'" "$m" cp -v "$d/tree/one" "$d/v.img:/"
    types 0 "link -> one" "$m" ls -l "$d/v.img:/tree"
    silent "$m" cp -rL "$d/tree" "$d/v.img:/followed"
    types 0 "one" "$m" cat "$d/v.img:/followed/link" "$d/v.img:/followed/way/two"
    types 1 "nofile" "$m" cp "$d/nofile" "$d/tree/one" "$d/v.img:/"
    types 0 "two" "$m" cat "$d/v.img" /tree/sub/two
    types 1 "No such file" "$m" cat "$d/v.img:/none" "$d/v.img:/one"
    types 0 "/tree/sub:" "$m" ls "$d/v.img:/one" "$d/v.img:/tree/sub" "$d/v.img:/tree"
    types 1 "No such file" "$m" ls "$d/v.img:/none" "$d/v.img:/tree"
    types 0 "+0100" "$m" ls -lh "$d/v.img:/"
}

edits() {
    m=$work/moafs
    d=$1
    silent "$m" touch -d "2026-03-01 13:30" "$d/v.img:/one"
    types 0 "2026-03-01 13:30:00 +0100" "$m" ls -l "$d/v.img:/one"
    types 0 "2026-03-01T12:30:00.000000000Z" "$m" ls --json "$d/v.img:/one"
    types 0 "2026-03-01 13:30:00 +0100" "$m" stat "$d/v.img:/one" "$d/v.img:/tree"
    types 0 "2026-03-01 13:30" "$m" ls -l --time-style=long-iso "$d/v.img:/one"
    silent "$m" touch -m -r "$d/v.img:/one" "$d/v.img:/tree/one"
    types 2 "give a date" "$m" touch -d someday "$d/v.img:/one"
    types 0 "/tree" "$m" du -h -d 0 "$d/v.img:/tree"
    types 0 "Volume" "$m" df -h "$d/v.img"
    silent "$m" truncate -s 1.5M "$d/v.img:/long"
    types 0 "1572864" "$m" ls -l "$d/v.img:/long"
    types 2 "powers of 1024" "$m" truncate -s 1,5M "$d/v.img:/long"
    silent "$m" mv -n "$d/v.img:/long" "$d/v.img:/one"
    types 0 "replace $d/v.img:/one?" "$m" mv -i "$d/v.img:/long" "$d/v.img:/one"
    types 1 "Is a directory" "$m" rm "$d/v.img:/tree"
    silent "$m" rm -r "$d/v.img:/tree" "$d/v.img:/followed"
    types 0 "no errors" "$m" fsck -n -f "$d/v.img"
    types 1 "No such file" "$m" ls "$d/no.img:/"
    types 2 "Usage" "$m" ls
    types 2 "unrecognized subcommand" "$m" lsx "$d/v.img"
    head -c $((160 << 20)) /dev/zero | tr '\0' x >"$work/large"
    chmod 644 "$work/large"
    types 1 "No space left" "$m" cp "$work/large" "$d/v.img:/"
    types 1 "large" "$m" stat "$d/v.img:/large"
    rm -f "$work/large"
    types 0 "no errors" "$m" fsck -n -f "$d/v.img"
}

# A volume that is mounted is looked at through the mount, and not changed beside it.
mounted() {
    m=$work/moafs
    d=$1
    silent "$m" mount "$d/v.img" "$mnt"
    echo live >"$mnt/live"
    types 0 "live" "$m" cat "$d/v.img:/live"
    types 0 "live" "$m" ls -l "$d/v.img:/"
    types 0 "file, inode" "$m" stat "$d/v.img:/live"
    types 1 "it is mounted on $mnt" "$m" rm "$d/v.img:/live"
    silent "$m" umount "$mnt"
    silent "$m" rm "$d/v.img:/live"
}

partitions() {
    m=$work/moafs
    d=$1
    have sfdisk || return 0
    truncate -s 300M "$d/disk.img"
    printf 'label: gpt\nsize=140M,name=one\nsize=140M,name=two\n' | sfdisk -q "$d/disk.img" >/dev/null
    types 1 "a partition table (gpt, 2 partitions); -F overwrites it" "$m" mkfs -t "$maker" "$d/disk.img"
    types 0 "volume" "$m" mkfs -t "$maker" "$d/disk.img@one"
    types 0 "volume" "$m" mkfs -t "$maker" "$d/disk.img@two"
    silent "$m" touch "$d/disk.img@1:/a"
    types 1 "has several volumes" "$m" ls "$d/disk.img"
    types 0 "a partition table (gpt, 2 partitions), which is overwritten" "$m" mkfs -F -t "$maker" "$d/disk.img"
}

: >"$transcript"
volumes "$work/root"
edits "$work/root"
mounted "$work/root"
partitions "$work/root"
if have setpriv; then
    mkdir "$work/home"
    chown 65534:65534 "$work/home"
    as="setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$work/home"
    volumes "$work/home/user"
    edits "$work/home/user"
fi
say "$maker: $(grep -c '^[$] ' "$transcript") lines typed"
