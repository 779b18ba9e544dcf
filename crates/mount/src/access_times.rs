//! Follows the mount's options of access times, which a remount changes.
//!
//! A remount is between the caller and the kernel: no request tells of it. But the daemon decides whether reading a
//! file updates its access time. So a thread waits for changes of the mount table, and looks the mount up in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use moafs_fuse::{MountFlags, MountHandle};
use moafs_vfs::api::AtimePolicy;
use moafs_vfs::{Format, Vfs};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::log::Log;

/// The thread that follows the options, until this is dropped.
#[derive(Debug)]
pub(crate) struct AccessTimes {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AccessTimes {
    /// Starts to follow the options of a mount from what they are now.
    ///
    /// # Errors
    /// The mount table cannot be read, or the thread cannot be started.
    pub(crate) fn follow<F: Format>(vfs: Vfs<F>, mount: MountHandle, log: Arc<Log>) -> io::Result<AccessTimes> {
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
                }
                known = flags;
                Ok(())
            });
            if let Err(error) = followed {
                log.say(&format!("access times no longer follow a remount: {error}"));
            }
        };
        let thread = std::thread::Builder::new().name("access-times".to_owned()).spawn(body)?;
        Ok(AccessTimes { stop, thread: Some(thread) })
    }
}

impl Drop for AccessTimes {
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
    fn the_wait_for_changes_ends_when_it_is_told() {
        let (table, stop) = (File::open("/proc/self/mountinfo").unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        rustix::io::write(&stop, &[1; 8]).unwrap();
        for_each_change(&table, &stop, || Ok(())).unwrap();
    }
}
