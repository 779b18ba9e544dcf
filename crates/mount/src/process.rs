//! Facts from /proc about the thread that made a request. It is read only when needed: requests do not carry them.

use std::io::{self, ErrorKind};
use std::time::Duration;

use moafs_vfs::Process;
use rustix::io::Errno;
use rustix::process::Pid;
use smallvec::SmallVec;

/// Returns the supplementary groups of a thread; none if it cannot be found.
pub(crate) fn groups(tid: u32) -> SmallVec<[u32; 8]> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let groups = field(&status, "Groups:").unwrap_or_default();
    groups.split_ascii_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

/// Returns the process that a thread belongs to.
pub(crate) fn of_thread(tid: u32) -> Process {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let id = field(&status, "Tgid:").and_then(|tgid| tgid.trim().parse().ok()).unwrap_or(tid);
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    Process { id, age: age(&stat, &uptime, rustix::param::clock_ticks_per_second()) }
}

/// Returns true if the program whose request the calling thread serves has been killed, as far as it can be seen from
/// here.
pub fn caller_is_gone() -> bool {
    // Threads of another PID namespace have the number 0.
    moafs_fuse::interrupted_caller().is_some_and(|thread| thread != 0 && is_ending(thread))
}

/// Returns true if a thread is about to end: it has been killed, or is gone. Signals that its program handles do not
/// count.
pub(crate) fn is_ending(tid: u32) -> bool {
    is_ending_by(std::fs::read_to_string(format!("/proc/{tid}/status")), || is_there(tid))
}

/// Returns true if a thread that waits for an answer has been killed. Where that cannot be seen, it has not.
pub(crate) fn is_being_killed(tid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{tid}/status")).is_ok_and(|status| is_killed(&status))
}

/// Returns true for a status that shows a killed thread, and for the errors of one that is gone unless it `is_there`:
/// a /proc may show each user's own processes only, or not be mounted. Others tell nothing of it: too many open files
/// here.
fn is_ending_by(status: io::Result<String>, is_there: impl FnOnce() -> bool) -> bool {
    match status {
        Ok(status) => is_killed(&status),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => !is_there(),
        Err(_) => false,
    }
}

/// Returns true if there is a thread of this number, of any user.
fn is_there(tid: u32) -> bool {
    let thread = i32::try_from(tid).ok().and_then(Pid::from_raw);
    thread.is_some_and(|thread| rustix::process::test_kill_process(thread) != Err(Errno::SRCH))
}

/// Returns true if SIGKILL is pending, which every thread gets when its process is to end.
fn is_killed(status: &str) -> bool {
    let pending = |name| field(status, name).and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    (pending("SigPnd:") | pending("ShdPnd:")) & 1 << (libc::SIGKILL - 1) != 0
}

/// Returns the rest of the line that begins with `name`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Returns the time since a process started, from its `stat` and the machine's `uptime`.
fn age(stat: &str, uptime: &str, ticks_per_second: u64) -> Option<Duration> {
    // The name in parentheses may hold any character; the start is the 20th field behind it (the 22nd of all).
    let (_, fields) = stat.rsplit_once(')')?;
    let start: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let up: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let age = up - start as f64 / ticks_per_second.max(1) as f64;
    Duration::try_from_secs_f64(age.max(0.0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_itself() {
        let process = of_thread(std::process::id());
        assert_eq!(process.id, std::process::id());
        assert!(process.age.is_some_and(|age| age < Duration::from_secs(3600)));
        assert_eq!(of_thread(u32::MAX), Process { id: u32::MAX, age: None });
    }

    #[test]
    fn a_thread_is_ending_when_it_is_gone_or_has_a_kill_pending_and_not_for_other_signals() {
        assert!(!is_ending(std::process::id()));
        assert!(is_ending(u32::MAX));
        assert!(is_killed("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!is_killed("Name:\tx\nSigPnd:\t0000000000002000\nShdPnd:\t0000000000002000\n"), "SIGALRM");
    }

    #[test]
    fn a_thread_whose_status_cannot_be_read_for_another_reason_is_not_ending() {
        let is_ending = |errno| is_ending_by(Err(io::Error::from_raw_os_error(errno)), || false);
        assert!(is_ending(libc::ENOENT) && is_ending(libc::ESRCH));
        // /proc shows each user's own processes only, or is not there.
        assert!(!is_ending_by(Err(io::Error::from_raw_os_error(libc::ENOENT)), || true));
        assert!(is_there(1) && !is_there(i32::MAX as u32), "init lives");
        for errno in [libc::EMFILE, libc::ENFILE, libc::EACCES, libc::EPERM, libc::ENOMEM, libc::EINTR] {
            assert!(!is_ending(errno), "{errno}");
        }
    }

    #[test]
    fn groups_and_ages_are_parsed() {
        let status = "Name:\tx\nTgid:\t77\nGroups:\t4 24 1000 \nNStgid:\t77\n";
        assert_eq!(field(status, "Groups:").map(str::trim), Some("4 24 1000"));
        let stat = "77 (a) b) S 1 77 77 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 1500 9 8 7";
        assert_eq!(age(stat, "25.50 40.00\n", 100), Some(Duration::from_millis(10_500)));
        assert_eq!(age("77 (x", "25.50", 100), None);
        assert_eq!(age(stat, "", 100), None);
    }
}
