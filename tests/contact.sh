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
    types 1 "" "$m" mkfs -F -t "$maker" -O no_such_feature "$d/v.img" 1G
    [ "$(stat -c %s "$d/v.img")" = $((128 << 20)) ] || fail "a refused mkfs changed the length of the image"
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
    types 0 "$d/v.img:/tree/sub/two" "$m" find "$d/v.img:/tree" -name 't*' -type f -size -2
    types 1 "No such file" "$m" find "$d/v.img:/none" "$d/v.img:/tree"
    types 2 "give f, d, l" "$m" find "$d/v.img:/" -type x
    silent sh -c "echo piped | '$m' cp - '$d/v.img:/piped'"
    types 0 "piped" "$m" cp "$d/v.img:/piped" -
    silent sh -c "echo again | '$m' cp /dev/stdin '$d/v.img:/piped'"
    types 0 "again" "$m" cp "$d/v.img:/piped" /dev/stdout
    types 1 "name the file" sh -c "echo x | '$m' cp - '$d/v.img:/tree'"
    types 0 "" sh -c "'$m' ls -tr '$d/v.img:/' | head -1"
    case $maker in
    f2fs) types 0 "segments" "$m" info "$d/v.img" ;;
    *) types 0 "bitmaps and table" "$m" info -g "$d/v.img" ;;
    esac
    silent "$m" map "$d/v.img" -o "$d/map.svg"
    types 1 "ending in .svg" "$m" map "$d/v.img" -o "$d/map.png"
    silent "$m" tune -L renamed -U time "$d/v.img"
    types 0 "renamed" "$m" info -H "$d/v.img"
    types 2 "random, time or clear" "$m" tune -U soon "$d/v.img"
    gzip -c "$d/v.img" >"$work/v.img.gz"
    chmod 644 "$work/v.img.gz"
    types 1 "compressed" "$m" ls "$work/v.img.gz:/"
    rm -f "$work/v.img.gz"
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
    silent "$m" touch -t 202603011330.30 "$d/v.img:/one"
    types 0 "2026-03-01 13:30:30 +0100" "$m" ls -l "$d/v.img:/one"
    types 2 "CC]YY]MMDDhhmm" "$m" touch -t 2026 "$d/v.img:/one"
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
    born=$(stat -c %w "$mnt/live")
    case $maker in
    # Its volumes keep no times of birth by default.
    f2fs) [ "$born" = - ] || fail "a time of birth that is not kept is shown: $born" ;;
    *) [ "$born" != - ] || fail "no time of birth" ;;
    esac
    types 0 "$d/v.img:/live" "$m" find "$d/v.img:/" -name live
    types 0 "live" "$m" cp "$d/v.img:/live" -
    types 0 "mounted on $mnt" "$m" info "$d/v.img"
    types 0 "mounted on $mnt" "$m" info -H "$d/v.img"
    types 0 "\"layout_score\"" "$m" info --json "$d/v.img"
    types 0 "</svg>" "$m" map "$d/v.img" -o -
    types 0 "$d/v.img" "$m" df -h "$d/v.img"
    types 0 "space " "$m" top --once -i 0.1 "$mnt"
    types 0 "statx " "$m" top --once -i 0.1 "$mnt"
    types 0 "vfs.lookups" "$m" stat "$mnt"
    types 8 "it is mounted on $mnt" "$m" fsck "$d/v.img"
    types 32 "is in use" "$m" mkfs -F -t "$maker" "$d/v.img"
    types 1 "it is mounted on $mnt" "$m" rm "$d/v.img:/live"
    silent "$m" umount "$d/v.img"
    types 32 "is not a mount of moafs" "$m" umount "$d/v.img"
    types 1 "unknown mount option" "$m" mount -o nosuchoption "$d/v.img" "$mnt"
    types 1 "do you mean" "$m" mount -o noatim "$d/v.img" "$mnt"
    types 32 "No such file" "$m" mount "$d/none.img" "$mnt"
    types 32 "No such file" "$m" mount "$d/v.img" "$d/none"
    silent "$m" mount -o errors=remount-ro,acl,user_xattr,loop,barrier,data=ordered,discard "$d/v.img" "$mnt"
    silent "$m" umount "$mnt"
    silent "$m" mount -o uid=5,gid=6,umask=077 "$d/v.img" "$mnt"
    types 0 "700 5:6" stat -c "%a %u:%g" "$mnt/live"
    types 1 "not permitted" chown 7 "$mnt/live"
    silent "$m" umount "$mnt"
    types 1 "octal" "$m" mount -o umask=8 "$d/v.img" "$mnt"
    types 1 "give a number" "$m" mount -o uid=root "$d/v.img" "$mnt"
    types 1 "would be root" "$m" mount -o fakeroot,allow_other "$d/v.img" "$mnt"
    silent "$m" rm "$d/v.img:/live"
    types 0 "umask=OCTAL" "$m" mount --help
    [ "$(wc -l <"$work/said")" -lt 50 ] || fail "the help of mount is longer than a screen"
    interrupted "$d"
    pipes "$d"
}

# A pipe without another end is waited for, as cp(1) does, and Ctrl-C ends that.
pipes() {
    mkfifo "$work/pipe"
    for copy in "$work/pipe $1/v.img:/part" "$1/v.img:/one $work/pipe"; do
        # Words of one variable, which have no spaces of their own.
        # shellcheck disable=SC2086
        until_signal $copy
    done
    rm "$work/pipe"
    types 1 "No such file" "$m" stat "$1/v.img:/part"
}

# until_signal SOURCE DESTINATION: the copy waits until a signal comes.
until_signal() {
    "$m" cp "$1" "$2" >"$work/said" 2>&1 &
    pid=$!
    sleep 0.5
    got=0
    kill -INT $pid || got=ended
    wait $pid || got=$?
    { echo "\$ moafs cp $1 $2 (and Ctrl-C)"; cat "$work/said"; echo "[$got]"; } >>"$transcript"
    [ "$got" = 130 ] || fail "exit code $got of a copy that waits for a pipe"
}

# Ctrl-C in the middle of a copy: no part stays, and the volume is sound.
interrupted() {
    mkfifo "$work/pipe"
    # Less than the volume holds, and then no end for some time: the copy is under way when the signal comes.
    { head -c 500000 /dev/zero; sleep 20; } >"$work/pipe" &
    writer=$!
    "$m" cp - "$1/v.img:/part" <"$work/pipe" >"$work/said" 2>&1 &
    pid=$!
    sleep 0.5
    kill -INT $pid
    got=0
    wait $pid || got=$?
    { echo "\$ moafs cp - $1/v.img:/part (and Ctrl-C)"; cat "$work/said"; echo "[$got]"; } >>"$transcript"
    kill $writer
    wait $writer || true
    rm "$work/pipe"
    [ "$got" = 130 ] || fail "exit code $got of an interrupted copy"
    types 1 "No such file" "$m" stat "$1/v.img:/part"
    types 0 "no errors" "$m" fsck -n -f "$1/v.img"
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
