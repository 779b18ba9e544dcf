//! Fault injection: requests that fail, are cut short or are delayed on purpose.
//!
//! The fault model is [`Harm`] (the failure), [`Victims`] (the requests concerned) and [`When`]
//! (the occurrences). The first rule that hits decides. Faults are injected above the device: a
//! faulty request does not reach it, except for the prefix of a [`Harm::Short`] write.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Rt, Time, sleep_until};

use crate::{Buf, Disk, DiskError, Done, Epoch, Op, Page, Request, SECTOR, SharedDisk, Ticket};

/// The failure that a rule injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The device reports an I/O error and has done nothing. A flush that fails stays failed.
    Error,
    /// A write stores its first sectors and then reports an I/O error; other requests just fail.
    Short {
        /// The number of sectors that still reach the device.
        sectors: u64,
    },
    /// The request takes this much longer and then succeeds.
    Slow(Duration),
    /// The host file system below the image is full; a retry may succeed.
    HostFull,
    /// The code that makes the request panics instead, as a defect of it might.
    Panic,
}

/// The requests that a rule concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Victims {
    /// Reads that touch these sectors.
    Reads(Range<u64>),
    /// Writes, discards and writes of zeroes that touch these sectors.
    Writes(Range<u64>),
    /// All requests that touch these sectors.
    Requests(Range<u64>),
    /// Flushes of the device.
    Flushes,
}

/// Every sector of any disk.
pub const EVERYWHERE: Range<u64> = 0..u64::MAX;

/// The occurrences on which a rule hits, counted among the rule's own victims from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// On each occurrence, from the first on.
    Always,
    /// On the n-th occurrence only: a transient error.
    Nth(u64),
    /// On the n-th and every later occurrence: the device fails for good.
    From(u64),
    /// On the n-th occurrence and so many in all: an error that passes.
    During(u64, u64),
    /// On every n-th occurrence.
    EveryNth(u64),
}

/// One rule of a fault plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The requests the rule concerns.
    pub victims: Victims,
    /// The occurrences on which it hits.
    pub when: When,
    /// The failure it injects.
    pub harm: Harm,
}

impl Rule {
    /// Makes a rule that injects `harm` into `victims`.
    pub fn new(victims: Victims, when: When, harm: Harm) -> Rule {
        Rule { victims, when, harm }
    }

    fn concerns(&self, request: &Request) -> bool {
        let range = match &self.victims {
            Victims::Reads(range) if !request.is_write() => range,
            Victims::Writes(range) if request.is_write() => range,
            Victims::Requests(range) => range,
            _ => return false,
        };
        let end = request.at.0.saturating_add(request.bytes() / SECTOR as u64);
        request.at.0 < range.end && range.start < end
    }
}

impl When {
    fn hits(self, count: u64) -> bool {
        match self {
            When::Always => true,
            When::Nth(n) => count == n,
            When::From(n) => count >= n,
            When::During(n, occurrences) => count >= n && count - n < occurrences,
            When::EveryNth(n) => n != 0 && count.is_multiple_of(n),
        }
    }
}

/// A disk that follows a plan of faults.
pub struct Fault {
    inner: SharedDisk,
    rt: Rt,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each rule with the number of victims it has met.
    rules: Vec<(Rule, u64)>,
    hits: u64,
    batches: BTreeMap<u64, Batch>,
    batch_next: u64,
    flush_failed: Option<DiskError>,
}

/// A submitted batch with the results of its faulty requests.
struct Batch {
    below: Ticket,
    /// Errors of the faulty requests; `None` where the device's result counts.
    own: Vec<Option<DiskError>>,
    /// True for requests that were passed to the device.
    passed: Vec<bool>,
    not_before: Time,
}

impl Fault {
    /// Makes a disk on which `rules` inject faults.
    pub fn new(inner: SharedDisk, rt: Rt, rules: Vec<Rule>) -> Fault {
        let fault = Fault { inner, rt, state: Mutex::default() };
        fault.set(rules);
        fault
    }

    /// Replaces the plan; counting starts again. A flush that has failed stays failed.
    pub fn set(&self, rules: Vec<Rule>) {
        self.state.lock().rules = rules.into_iter().map(|rule| (rule, 0)).collect();
    }

    /// Returns how many requests and flushes were faulty so far.
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }
}

impl State {
    /// Counts a victim with every rule that concerns it; returns the failure of the first rule that
    /// hits.
    fn judge(&mut self, concerns: impl Fn(&Rule) -> bool) -> Option<Harm> {
        let mut harm = None;
        for (rule, count) in self.rules.iter_mut().filter(|(rule, _)| concerns(rule)) {
            *count += 1;
            if harm.is_none() && rule.when.hits(*count) {
                harm = Some(rule.harm);
            }
        }
        self.hits += u64::from(harm.is_some());
        harm
    }
}

/// Returns the request to pass to the device instead of a faulty one, and the error for its caller.
fn hurt(request: Request, harm: Harm) -> (Option<Request>, Option<DiskError>) {
    let (name, at, bytes) = (request.op.name(), request.at, request.bytes());
    let error = DiskError::io(name, at, bytes, libc::EIO);
    match (harm, request.op) {
        (Harm::Slow(_), op) => (Some(Request { op, ..request }), None),
        (Harm::Panic, _) => panic!("an injected panic: {name} at {at:?}"),
        (Harm::HostFull, _) => (None, Some(DiskError::HostFull { at, bytes })),
        (Harm::Short { sectors }, Op::Write { data, fua }) => {
            let data = prefix(&data, sectors);
            (Some(Request { op: Op::Write { data, fua }, ..request }), Some(error))
        }
        (Harm::Error | Harm::Short { .. }, _) => (None, Some(error)),
    }
}

/// Returns the first sectors of a gather list.
fn prefix(data: &[Page], sectors: u64) -> Vec<Page> {
    let mut bytes_left = usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(SECTOR);
    let mut pieces = Vec::new();
    for page in data {
        let len = page.len().min(bytes_left);
        if len > 0 {
            pieces.push(Buf::copy_of(&page[..len]).freeze());
        }
        bytes_left -= len;
    }
    pieces
}

impl Disk for Fault {
    crate::forward_to!(inner: limits, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut not_before = Time(0);
        let (mut below, mut own, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        for request in batch {
            let harm = self.state.lock().judge(|rule| rule.concerns(&request));
            if let Some(Harm::Slow(delay)) = harm {
                not_before = not_before.max(self.rt.now() + delay);
            }
            let (request, error) = match harm {
                None => (Some(request), None),
                Some(harm) => hurt(request, harm),
            };
            passed.push(request.is_some());
            below.extend(request);
            own.push(error);
        }
        let below = self.inner.submit(below);
        let mut state = self.state.lock();
        let number = state.batch_next;
        state.batch_next += 1;
        state.batches.insert(number, Batch { below, own, passed, not_before });
        Ticket(number)
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let batch = self.state.lock().batches.remove(&ticket.0);
        let batch = batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"));
        let mut below = self.inner.wait(batch.below).into_iter();
        sleep_until(&*self.rt, batch.not_before);
        let epoch = self.inner.epoch();
        let result = |(own, passed): (Option<DiskError>, bool)| {
            let done = if passed { below.next() } else { None };
            match (own, done) {
                (None, Some(done)) => done,
                (Some(error), _) => Done { result: Err(error), epoch },
                (None, None) => unreachable!("what was not hurt was passed on"),
            }
        };
        batch.own.into_iter().zip(batch.passed).map(result).collect()
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        let harm = {
            let mut state = self.state.lock();
            if let Some(reason) = &state.flush_failed {
                return Err(reason.clone());
            }
            let needed = self.inner.durable() < Some(upto.min(self.inner.epoch()));
            if needed { state.judge(|rule| rule.victims == Victims::Flushes) } else { None }
        };
        match harm {
            None => {}
            Some(Harm::Slow(delay)) => sleep_until(&*self.rt, self.rt.now() + delay),
            Some(Harm::Panic) => panic!("an injected panic: a flush"),
            Some(_) => {
                let reason = DiskError::flush(libc::EIO);
                self.state.lock().flush_failed = Some(reason.clone());
                return Err(reason);
            }
        }
        self.inner.make_durable(upto)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_runtime::Live;

    use super::*;
    use crate::{DiskExt, Kind, Lba, MemDisk, Tag};

    const TAG: Tag = Tag::volume(Kind::Data);

    fn faulty(victims: Victims, when: When, harm: Harm) -> Fault {
        Fault::new(Arc::new(MemDisk::new(64)), Live::new(), vec![Rule::new(victims, when, harm)])
    }

    fn ones(sectors: usize) -> Page {
        Buf::copy_of(&vec![1; sectors * SECTOR]).freeze()
    }

    fn pattern(disk: &Fault, count: u64) -> Vec<bool> {
        (0..count).map(|i| disk.write(Lba(i), ones(1), TAG).is_ok()).collect()
    }

    #[test]
    fn hits_the_requests_the_rule_names() {
        let writes = || Victims::Writes(EVERYWHERE);
        assert_eq!(pattern(&faulty(writes(), When::Nth(2), Harm::Error), 4), [true, false, true, true]);
        assert_eq!(pattern(&faulty(writes(), When::From(3), Harm::Error), 4), [true, true, false, false]);
        assert_eq!(pattern(&faulty(writes(), When::During(2, 2), Harm::Error), 4), [true, false, false, true]);
        assert_eq!(pattern(&faulty(writes(), When::EveryNth(2), Harm::Error), 4), [true, false, true, false]);
        let range = faulty(Victims::Requests(1..3), When::Always, Harm::Error);
        assert_eq!(pattern(&range, 4), [true, false, false, true]);
        assert!(range.read(Lba(0), 1024, TAG).is_err());
        let reads = faulty(Victims::Reads(EVERYWHERE), When::Always, Harm::Error);
        assert_eq!(pattern(&reads, 2), [true, true]);
    }

    #[test]
    fn hurt_requests_leave_the_rest_of_the_batch_alone() {
        let disk = faulty(Victims::Writes(EVERYWHERE), When::Nth(2), Harm::Error);
        let write = |at| Request { op: Op::Write { data: vec![ones(1)], fua: false }, at: Lba(at), tag: TAG };
        let ok: Vec<bool> = disk.run((0..3).map(write).collect()).iter().map(|d| d.result.is_ok()).collect();
        assert_eq!(ok, [true, false, true]);
        let stored: Vec<u8> = disk.read(Lba(0), 3 * SECTOR, TAG).unwrap().chunks(SECTOR).map(|s| s[0]).collect();
        assert_eq!(stored, [1, 0, 1]);
        assert_eq!(disk.hits(), 1);
    }

    #[test]
    fn a_short_write_stores_its_prefix() {
        let disk = faulty(Victims::Writes(EVERYWHERE), When::Always, Harm::Short { sectors: 2 });
        assert!(disk.write(Lba(0), ones(4), TAG).is_err());
        let stored: Vec<u8> = disk.read(Lba(0), 4 * SECTOR, TAG).unwrap().chunks(SECTOR).map(|s| s[0]).collect();
        assert_eq!(stored, [1, 1, 0, 0]);
    }

    #[test]
    fn slow_requests_take_their_time() {
        let delay = Duration::from_millis(10);
        let disk = faulty(Victims::Reads(EVERYWHERE), When::Always, Harm::Slow(delay));
        let start = std::time::Instant::now();
        disk.read(Lba(0), 512, TAG).unwrap();
        assert!(start.elapsed() >= delay);
    }

    #[test]
    fn a_failed_flush_stays_failed() {
        let disk = faulty(Victims::Flushes, When::Nth(2), Harm::Error);
        disk.write(Lba(0), ones(1), TAG).unwrap();
        disk.flush().unwrap();
        disk.make_durable(Epoch(0)).unwrap();
        disk.write(Lba(0), ones(1), TAG).unwrap();
        let first = disk.flush().unwrap_err();
        disk.set(Vec::new());
        assert_eq!(disk.flush().unwrap_err(), first);
    }

    #[test]
    fn a_full_host_gets_room_again() {
        let disk = faulty(Victims::Writes(EVERYWHERE), When::Nth(1), Harm::HostFull);
        assert!(matches!(disk.write(Lba(0), ones(1), TAG), Err(DiskError::HostFull { .. })));
        disk.write(Lba(0), ones(1), TAG).unwrap();
    }
}
