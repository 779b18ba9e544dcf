//! A failed write of a file's data, and the processes that have been told of it.
//!
//! Kernels report it once to each open file. There are no open files here: the front does not ask for opens. So it is
//! reported once to each process that syncs the file and was there when the write failed. One that started later
//! cannot have had the file open, or has it from a parent that is told; it is told of the error only if no process has
//! been.

use std::collections::BTreeSet;
use std::time::Duration;

use moafs_runtime::Time;

use crate::error::Error;

/// The most processes that are remembered as told. Beyond that some are told twice.
const TOLD_MAX: usize = 256;

/// The most by which the two clocks that tell ages may differ.
const SLACK: Duration = Duration::from_millis(50);

/// The process that asks for an fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The process id, which is unique among the running processes.
    pub id: u32,
    /// The time since the process started; `None` if that is not known, and then it counts as older than any error.
    pub age: Option<Duration>,
}

impl Process {
    /// The only process of a tool or a test.
    pub const SELF: Process = Process { id: 0, age: None };
}

/// The newest failed write of a file.
#[derive(Debug)]
pub(crate) struct WriteError {
    error: Error,
    since: Time,
    told: BTreeSet<u32>,
}

impl WriteError {
    /// Notes a failed write. A process that was told of an earlier one is told again.
    pub(crate) fn latch(slot: &mut Option<WriteError>, error: &Error, now: Time) {
        let error = match slot.take() {
            Some(first) if first.told.is_empty() => first.error,
            _ => error.clone(),
        };
        *slot = Some(WriteError { error, since: now, told: BTreeSet::new() });
    }

    /// Returns true if a process has been told of the error.
    pub(crate) fn was_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// Returns the error if this process is to be told now, and remembers that it was told.
    pub(crate) fn tell(&mut self, process: Process, now: Time) -> Option<Error> {
        if self.told.contains(&process.id) {
            return None;
        }
        let came_later = process.age.is_some_and(|age| age + SLACK < now - self.since);
        if came_later && self.was_told() {
            return None;
        }
        if self.told.len() >= TOLD_MAX {
            self.told.pop_first();
        }
        self.told.insert(process.id);
        Some(self.error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: u64) -> Time {
        Time(secs * 1_000_000_000)
    }

    fn process(id: u32, age: u64) -> Process {
        Process { id, age: Some(Duration::from_secs(age)) }
    }

    #[test]
    fn each_process_that_was_there_is_told_once() {
        let mut slot = None;
        WriteError::latch(&mut slot, &Error::Posix(libc::EIO), at(10));
        let error = slot.as_mut().unwrap();
        assert!(error.tell(process(1, 100), at(11)).is_some());
        assert!(error.tell(process(1, 100), at(12)).is_none());
        assert!(error.tell(process(2, 400), at(300)).is_some());
    }

    #[test]
    fn a_process_that_came_later_is_told_only_if_none_knows() {
        let mut slot = None;
        WriteError::latch(&mut slot, &Error::Posix(libc::EIO), at(10));
        let error = slot.as_mut().unwrap();
        assert!(error.tell(process(3, 5), at(100)).is_some());
        assert!(error.tell(process(4, 5), at(100)).is_none());
        assert!(error.tell(process(5, 500), at(100)).is_some(), "it was there");
        WriteError::latch(&mut slot, &Error::Posix(libc::ENOSPC), at(200));
        let error = slot.as_mut().unwrap();
        assert_eq!(error.tell(process(5, 600), at(200)).map(|e| e.errno()), Some(libc::ENOSPC), "another error");
    }
}
