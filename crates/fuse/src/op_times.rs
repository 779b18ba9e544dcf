//! [`OpTimes`]: how many requests of each operation were served, and how long that took.
//!
//! The time of a request is that of its service: from the moment a thread has received it until the reply is given to
//! the kernel. What it waits for a thread before that is not in it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::Opcode;

/// One more than the largest number of an operation.
const OPERATIONS: usize = 64;

/// Counters of all operations, shared by the threads that serve.
#[derive(Debug)]
pub struct OpTimes([Cell; OPERATIONS]);

/// One operation; on a cache line of its own, so that threads which serve different ones do not wait for each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    requests: AtomicU64,
    ns: AtomicU64,
}

/// The requests of an operation, and the time that all of them took together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpTime {
    /// The operation, as the protocol calls it, in small letters.
    pub operation: String,
    /// Number of requests that are done.
    pub requests: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Default for OpTimes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::default()))
    }
}

impl OpTimes {
    /// Returns the operations that there were.
    pub fn spent(&self) -> Vec<OpTime> {
        let spent = (0u32..).zip(&self.0).filter_map(|(number, cell)| {
            let requests = cell.requests.load(Ordering::Relaxed);
            let operation = Opcode::from_number(number).filter(|_| requests > 0)?;
            let operation = format!("{operation:?}").to_lowercase();
            Some(OpTime { operation, requests, ns: cell.ns.load(Ordering::Relaxed) })
        });
        spent.collect()
    }

    /// Counts a request that is done.
    pub(crate) fn note(&self, number: u32, took: Duration) {
        let Some(cell) = self.0.get(number as usize) else { return };
        cell.requests.fetch_add(1, Ordering::Relaxed);
        cell.ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_their_times_are_summed_by_operation() {
        let times = OpTimes::default();
        let number = |operation: Opcode| operation.number();
        for ns in [300, 500] {
            times.note(number(Opcode::Read), Duration::from_nanos(ns));
        }
        times.note(number(Opcode::Lookup), Duration::from_nanos(7));
        times.note(u32::MAX, Duration::from_secs(1));
        let of = |operation: &str, requests, ns| OpTime { operation: operation.to_owned(), requests, ns };
        assert_eq!(times.spent(), [of("lookup", 1, 7), of("read", 2, 800)]);
    }

    #[test]
    fn every_operation_has_a_place() {
        assert!(Opcode::ALL.iter().all(|operation| (operation.number() as usize) < OPERATIONS));
    }
}
