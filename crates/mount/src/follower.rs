//! Follows those options of every mount that the volume has a part in, which a remount changes.
//!
//! A remount is between the caller and the kernel: no request tells of it. But the daemon decides whether reading a
//! file updates its access time, and which changes are durable at once. So a thread waits for changes of the mount
//! table, and looks the mount up in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use moafs_fuse::{MountFlags, MountHandle};
use moafs_vfs::api::{AtimePolicy, Synchronous};
use moafs_vfs::{Format, Vfs};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::log::Log;

/// The thread that follows the options, until this is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts to follow the options of a mount from what they are now.
    ///
    /// # Errors
    /// The mount table cannot be read, or the thread cannot be started.
    pub(crate) fn follow<F: Format>(vfs: Vfs<F>, mount: MountHandle, log: Arc<Log>) -> io::Result<Follower> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        // Changes from the opening on wake the thread.
        let table = File::open("/proc/self/mountinfo")?;
        let mut known = mount.flags()?;
        let stopped = Arc::clone(&stop);
        let body = move || {
            let followed = for_each_change(&table, &stopped, || {
                let flags = mount.flags()?;
                if let Some(flags) = flags.filter(|_| flags != known) {
                    vfs.set_atime(policy_of(flags));
                    vfs.set_synchronous(synchronous_of(flags));
                }
                known = flags;
                Ok(())
            });
            if let Err(error) = followed {
                log.say(&format!("options no longer follow a remount: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("follower".to_owned()).spawn(body)?;
        Ok(Follower { stop, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // A counter that is 0 takes any number but the largest.
        let _ = rustix::io::write(&self.stop, &[1; 8]);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Calls `look` after each change of the mount table, until `stop` can be read.
fn for_each_change(table: &File, stop: &OwnedFd, mut look: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        let mut both = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut both, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [_, stop] = &both;
        if !stop.revents().is_empty() {
            return Ok(());
        }
        look()?;
    }
}

/// Returns the rule that goes with the options of a mount. The kernel shows no word for the strict one.
fn policy_of(flags: MountFlags) -> AtimePolicy {
    if flags.intersects(MountFlags::RDONLY | MountFlags::NOATIME) {
        AtimePolicy::Never
    } else if flags.contains(MountFlags::RELATIME) {
        AtimePolicy::Relative
    } else {
        AtimePolicy::Strict
    }
}

/// Returns the changes that are durable at once with the options of a mount.
pub(crate) fn synchronous_of(flags: MountFlags) -> Synchronous {
    if flags.contains(MountFlags::SYNCHRONOUS) {
        Synchronous::All
    } else if flags.contains(MountFlags::DIRSYNC) {
        Synchronous::Names
    } else {
        Synchronous::Marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_takes_no_changes_updates_no_access_times() {
        assert_eq!(policy_of(MountFlags::RDONLY | MountFlags::RELATIME), AtimePolicy::Never);
        assert_eq!(policy_of(MountFlags::NOATIME), AtimePolicy::Never);
        assert_eq!(policy_of(MountFlags::RELATIME | MountFlags::NOSUID), AtimePolicy::Relative);
        assert_eq!(policy_of(MountFlags::NOEXEC), AtimePolicy::Strict);
    }

    #[test]
    fn sync_is_more_than_dirsync() {
        assert_eq!(synchronous_of(MountFlags::DIRSYNC | MountFlags::SYNCHRONOUS), Synchronous::All);
        assert_eq!(synchronous_of(MountFlags::DIRSYNC | MountFlags::NODEV), Synchronous::Names);
        assert_eq!(synchronous_of(MountFlags::NODEV), Synchronous::Marked);
    }

    #[test]
    fn the_wait_for_changes_ends_when_it_is_told() {
        let (table, stop) = (File::open("/proc/self/mountinfo").unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        rustix::io::write(&stop, &[1; 8]).unwrap();
        for_each_change(&table, &stop, || Ok(())).unwrap();
    }
}
