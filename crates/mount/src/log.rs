//! Messages of a live mount: to standard error in the foreground, to the system log in the background.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

use parking_lot::Mutex;

/// The system log's socket.
const SYSLOG_SOCKET: &str = "/dev/log";

/// Facility "daemon" (3), severity "err" (3), as a syslog priority.
const PRIORITY: u8 = 3 << 3 | 3;

/// Failures logged in full; the rest are counted. A dying device must not fill the log.
const FAILURES_TOLD_MAX: u64 = 8;

/// The destination of messages, and the number of failures.
#[derive(Debug)]
pub struct Log {
    about: String,
    failures: Mutex<Failures>,
}

/// Failures so far, as `.moafs/stats` shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Failures {
    /// Requests that failed because of the device or of damage.
    pub count: u64,
    /// Message of the first failure.
    pub first: Option<String>,
}

impl Log {
    /// Creates a log whose messages begin with `about`, the name of the volume.
    pub fn new(about: impl Into<String>) -> Log {
        Log { about: about.into(), failures: Mutex::default() }
    }

    /// Logs a message that is no failure of the volume.
    pub fn say(&self, message: &str) {
        let line = printable(&format!("moafs: {}: {message}", self.about));
        // A failed write to standard error cannot be reported anywhere.
        let _ = writeln!(std::io::stderr(), "{line}");
        let _ = to_syslog(&line);
    }

    /// Counts a failure of the device or of the volume's structures, and logs the first ones.
    pub fn failure(&self, reason: &str) {
        let count = {
            let mut failures = self.failures.lock();
            failures.count += 1;
            if failures.first.is_none() {
                failures.first = Some(reason.to_owned());
            }
            failures.count
        };
        match count {
            1..FAILURES_TOLD_MAX => self.say(reason),
            FAILURES_TOLD_MAX => self.say(&format!("{reason} (further failures are only counted: .moafs/stats)")),
            _ => {}
        }
    }

    /// Returns the failures so far.
    pub fn failures(&self) -> Failures {
        self.failures.lock().clone()
    }
}

/// Returns the text with control characters escaped: names come from volumes and users, and must not control a terminal
/// or fake a line of the log.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    text.chars().map(escaped).collect()
}

fn to_syslog(line: &str) -> std::io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(format!("<{PRIORITY}>{line}").as_bytes(), SYSLOG_SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[2J\nb é"), "a\\u{1b}[2J\\nb é");
    }

    #[test]
    fn the_first_reason_is_kept_and_all_are_counted() {
        let log = Log::new("test");
        for reason in ["first", "second", "third"] {
            log.failure(reason);
        }
        assert_eq!(log.failures(), Failures { count: 3, first: Some("first".into()) });
    }
}
