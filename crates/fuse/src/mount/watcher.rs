//! Unmounting when this process is killed.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A process that takes a mount away when this one is gone without having unmounted, even if it was killed.
///
/// `fusermount3 -o auto_unmount` does not do: it unmounts only what answers ENOTCONN to its open, and the mount of a
/// user, which is for that user alone, answers EACCES to the helper, which runs as root (seen with 3.14).
#[derive(Debug)]
pub(super) struct Watcher {
    shell: Child,
    /// Closed by the kernel when this process ends, however it does.
    alive: Option<ChildStdin>,
}

/// Reads until its input ends. Then it unmounts `$0`, if the last mount there is still the one that `$1` describes as
/// the mount table does: another file system may be mounted over it.
const WATCH: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
top=
while read -r _ _ device root at _; do
    [ "$at" != "${1##* }" ] || top="$device $root $at"
done </proc/self/mountinfo
[ "$top" = "$1" ] || exit 0
[ "$(id -u)" != 0 ] || exec umount -l -- "$0"
fusermount3 -q -u -z -- "$0" || exec fusermount -q -u -z -- "$0"
"#;

impl Watcher {
    /// Watches over the mount at `target`, which these fields of the mount table identify.
    pub(super) fn start(target: &Path, fields: &[u8]) -> io::Result<Watcher> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", WATCH])
            .arg(target)
            .arg(OsStr::from_bytes(fields))
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let alive = shell.stdin.take();
        Ok(Watcher { shell, alive })
    }
}

impl Drop for Watcher {
    /// The mount is gone, or this process is about to be.
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.shell.wait();
    }
}
