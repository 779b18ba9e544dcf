//! Memory pressure: shrinks the volume's cache when tasks of the machine stall for want of memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use crate::log::Log;

/// The machine's pressure file. The daemon's own memory cgroup is preferred, if it has one.
const MACHINE_PRESSURE: &str = "/proc/pressure/memory";

/// Trigger: tasks stalled for 100 ms within 2 s. This is early enough to matter, and the shortest window that an
/// unprivileged process may ask for.
const TRIGGER: &str = "some 100000 2000000\0";

/// Smallest cache in bytes that is kept under pressure, so that the volume still works.
const KEEP_BYTES_MIN: u64 = 8 << 20;

/// The fraction (one part in this many) of the cache given back at each stall. The kernel reports once per window at
/// most, and goes on while the machine stalls: giving half at once would empty the cache after a short stall.
const GIVE_BACK: u64 = 4;

/// Watches for memory pressure until dropped.
#[derive(Debug)]
pub(crate) struct PressureWatch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl PressureWatch {
    /// Calls `shrink` with a new size, less by one part in [`GIVE_BACK`] than `cached_bytes` returns, at each stall.
    /// Returns `None` if the kernel does not report stalls.
    pub(crate) fn start(
        cached_bytes: impl Fn() -> u64 + Send + 'static,
        shrink: impl Fn(usize) + Send + 'static,
        log: &Log,
    ) -> Option<PressureWatch> {
        let trigger = open_trigger().ok()?;
        let (stop, stopped) = UnixStream::pair().ok()?;
        let watch = move || {
            while stalled(&trigger, &stopped) {
                let target = (cached_bytes() / GIVE_BACK * (GIVE_BACK - 1)).max(KEEP_BYTES_MIN);
                shrink(usize::try_from(target).unwrap_or(usize::MAX));
            }
        };
        match std::thread::Builder::new().name("pressure".to_owned()).spawn(watch) {
            Ok(thread) => Some(PressureWatch { stop: Some(stop), thread: Some(thread) }),
            Err(error) => {
                log.say(&format!("memory pressure is not watched: {error}"));
                None
            }
        }
    }
}

impl Drop for PressureWatch {
    fn drop(&mut self) {
        // Closing this end wakes the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Registers the trigger, which lives as long as the file is open.
fn open_trigger() -> io::Result<File> {
    let open = |path: &str| -> io::Result<File> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.write_all(TRIGGER.as_bytes())?;
        Ok(file)
    };
    own_cgroup_pressure().and_then(|path| open(&path).ok()).map_or_else(|| open(MACHINE_PRESSURE), Ok)
}

/// Returns the pressure file of the daemon's cgroup (version 2), unless that is the root cgroup.
fn own_cgroup_pressure() -> Option<String> {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    (path != "/").then(|| format!("/sys/fs/cgroup{path}/memory.pressure"))
}

/// Waits for a stall; returns false when told to stop, or when the trigger fails.
fn stalled(trigger: &File, stopped: &UnixStream) -> bool {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(trigger.as_fd(), PollFlags::PRI), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) if !fds[1].revents().is_empty() => return false,
            Ok(_) => return fds[0].revents().contains(PollFlags::PRI) && !fds[0].revents().contains(PollFlags::ERR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_when_it_is_dropped() {
        let log = Log::new("test");
        match PressureWatch::start(|| 0, |_| {}, &log) {
            Some(watch) => drop(watch),
            None => eprintln!("SKIPPED: the kernel does not tell about memory stalls here"),
        }
    }
}
