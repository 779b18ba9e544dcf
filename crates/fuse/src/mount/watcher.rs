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

/// Reads until its input ends. Then it unmounts `$0`, if the mount table still has a line with `$1`.
const WATCH: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
grep -qF -e "$1" /proc/self/mountinfo || exit 0
[ "$(id -u)" != 0 ] || exec umount -l -- "$0"
fusermount3 -q -u -z -- "$0" || exec fusermount -q -u -z -- "$0"
"#;

impl Watcher {
    /// Watches over the mount at `target`, which `line` of the mount table identifies.
    pub(super) fn start(target: &Path, line: &[u8]) -> io::Result<Watcher> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", WATCH])
            .arg(target)
            .arg(OsStr::from_bytes(line))
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
