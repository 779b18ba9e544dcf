//! The elevator: requests that wait while the device is busy are dispatched sorted and merged.
//!
//! Order is C-LOOK: ascending addresses from where the last dispatch ended, then back to the
//! lowest. Neighbours of the same kind merge up to the maximum transfer; larger requests are split.
//! There is no thread: a caller of `submit` fills the device, and a caller of `wait` keeps it full,
//! with the requests of any caller, and leaves it full. One batch over an idle device is sorted and
//! merged on its own.
//!
//! Invariants:
//! 1. Every original request gets its own [`Done`], with the epoch of its last part.
//! 2. A merged request that fails is repeated part by part, so that an error hits only the
//!    originals it belongs to.
//! 3. At most [`QueueOptions::depth`] dispatches are at the device. Each is reaped by one waiter.
//!
//! Requests in flight have no order among themselves ([`Disk`]), so reordering needs no barrier.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | C-LOOK and merging, as a pure function of the pending requests |
//! | `split` | cutting large requests, putting their results together |

mod plan;
mod split;

use std::collections::BTreeMap;

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt};

use crate::{Disk, DiskError, Done, Limits, ReadPart, Request, SharedDisk, Tag, Ticket, read_by_copy};
use plan::{Caps, Group, Origin, Part, Pending};
use split::Assembly;

/// Settings of the elevator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// The largest request in bytes; the device's limit applies too.
    pub transfer_bytes_max: usize,
    /// Dispatches at the device at once. One gives the device nothing to choose from, which suits
    /// a disk with one head; more let a device that works in parallel do so.
    pub depth: usize,
    /// Requests in one dispatch, after merging: bounds how long a newcomer waits for those ahead.
    pub dispatch_requests_max: usize,
    /// Parts waiting for the device at which `submit` begins to wait for room.
    pub pending_max: usize,
    /// True to merge neighbours into one request to the device. If false, pending requests are only sorted, as BSD's
    /// disksort did; requests are split all the same.
    pub merge: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            transfer_bytes_max: 1 << 20,
            depth: 8,
            dispatch_requests_max: 64,
            pending_max: 4096,
            merge: true,
        }
    }
}

impl QueueOptions {
    /// Makes options for a host that drives a disk without a queue of its own: one command at the device at a time, all
    /// others waiting here.
    pub fn one_command() -> QueueOptions {
        QueueOptions { depth: 1, dispatch_requests_max: 1, ..QueueOptions::default() }
    }
}

/// An elevator (request scheduler) over a disk.
pub struct Elevator {
    inner: SharedDisk,
    rt: Rt,
    options: QueueOptions,
    limits: Limits,
    state: Mutex<State>,
    /// Signalled when a request has completed or a batch can be reaped.
    moved: Event,
}

#[derive(Default)]
struct State {
    pending: Pending,
    batches: BTreeMap<u64, Batch>,
    batch_next: u64,
    flights: BTreeMap<u64, Flight>,
    flight_next: u64,
    /// Direct reads into callers' memory that are at the device: they do not wait here, but count
    /// as dispatches.
    passing: usize,
}

/// The requests of one `submit`, with the number of their parts that are still open.
struct Batch {
    requests: Vec<Assembly>,
    parts_open: usize,
}

/// One batch at the device.
struct Flight {
    groups: Vec<Group>,
    /// `None` while the batch is being submitted, and once a waiter reaps it.
    ticket: Option<Ticket>,
}

/// The next step of a task that drives the queue.
enum Step {
    Dispatch(u64, Vec<Request>),
    Reap(Ticket, Vec<Group>, u64),
    Nothing,
}

impl Elevator {
    /// Makes an elevator over `inner` whose callers wait in `rt`.
    pub fn new(inner: SharedDisk, rt: Rt, options: QueueOptions) -> Elevator {
        let mut limits = inner.limits().clone();
        let unit = limits.io_align;
        let transfer = limits.transfer_bytes_max.min(options.transfer_bytes_max);
        limits.transfer_bytes_max = (transfer / unit * unit).max(unit);
        limits.segments_max = limits.segments_max.max(1);
        Elevator { inner, rt, options, limits, state: Mutex::default(), moved: Event::new() }
    }

    /// Splits requests into parts and queues the parts.
    fn enqueue(&self, state: &mut State, requests: Vec<Request>) -> Ticket {
        let batch_no = state.batch_next;
        state.batch_next += 1;
        let mut batch = Batch { requests: Vec::with_capacity(requests.len()), parts_open: 0 };
        for request in requests {
            if let Err(error) = self.limits.check(&request) {
                batch.requests.push(Assembly::refused(error, self.inner.epoch()));
                continue;
            }
            let (parts, assembly) = split::split(request, &self.limits);
            batch.parts_open += parts.len();
            for (part_no, request) in parts.into_iter().enumerate() {
                let origin = Origin { batch: batch_no, request: batch.requests.len(), part: part_no };
                state.pending.insert(Part { origin, request });
            }
            batch.requests.push(assembly);
        }
        state.batches.insert(batch_no, batch);
        Ticket(batch_no)
    }

    fn is_full(&self, state: &State) -> bool {
        state.flights.len() + state.passing >= self.options.depth.max(1)
    }

    /// Removes the next requests for the device from the queue, if there is room at the device.
    fn next_dispatch(&self, state: &mut State) -> Option<(u64, Vec<Request>)> {
        if self.is_full(state) {
            return None;
        }
        let caps = Caps {
            transfer_bytes_max: self.limits.transfer_bytes_max,
            segments_max: self.limits.segments_max,
            requests_max: self.options.dispatch_requests_max.max(1),
            merge: self.options.merge,
        };
        let (requests, groups) = state.pending.take(&caps)?;
        let flight = state.flight_next;
        state.flight_next += 1;
        state.flights.insert(flight, Flight { groups, ticket: None });
        Some((flight, requests))
    }

    /// Dispatches while the device has room.
    fn fill(&self) {
        loop {
            let next = self.next_dispatch(&mut self.state.lock());
            let Some((flight, requests)) = next else { return };
            self.dispatch(flight, requests);
        }
    }

    fn dispatch(&self, flight: u64, requests: Vec<Request>) {
        let ticket = self.inner.submit(requests);
        if let Some(flight) = self.state.lock().flights.get_mut(&flight) {
            flight.ticket = Some(ticket);
        }
        self.rt.signal(&self.moved);
    }

    /// Chooses the next step for a task that waits for `batch`: keep the device full; then reap a
    /// dispatch that holds own requests; then, while own ones still wait in the queue, reap the
    /// oldest.
    fn next_step(&self, state: &mut State, batch: u64) -> Step {
        if let Some((flight, requests)) = self.next_dispatch(state) {
            return Step::Dispatch(flight, requests);
        }
        let ready = |flight: &&u64| state.flights[flight].ticket.is_some();
        let own = |flight: &&u64| state.flights[flight].groups.iter().any(|g| g.serves(batch));
        let mine = state.flights.keys().filter(ready).find(own);
        let Some(&number) = mine.or_else(|| state.flights.keys().find(ready)) else {
            return Step::Nothing;
        };
        let flight = state.flights.get_mut(&number).expect("found just now");
        let ticket = flight.ticket.take().expect("it was ready");
        Step::Reap(ticket, std::mem::take(&mut flight.groups), number)
    }

    /// Executes one step of work on the queue, or waits until another task has made progress.
    fn drive(&self, seen: moafs_runtime::Ticket, step: Step) {
        match step {
            Step::Dispatch(flight, requests) => self.dispatch(flight, requests),
            Step::Reap(ticket, groups, flight) => self.reap(ticket, groups, flight),
            Step::Nothing => {
                self.rt.wait(&self.moved, seen, None);
            }
        }
    }

    fn reap(&self, ticket: Ticket, groups: Vec<Group>, flight: u64) {
        let done = self.inner.wait(ticket);
        debug_assert_eq!(done.len(), groups.len());
        let finished: Vec<(Origin, Done)> =
            groups.into_iter().zip(done).flat_map(|(group, done)| self.settle(group, done)).collect();
        let mut state = self.state.lock();
        state.flights.remove(&flight);
        for (origin, done) in finished {
            state.finish(origin, done);
        }
        drop(state);
        self.rt.signal(&self.moved);
    }

    /// Distributes the result of one request to the device to its parts.
    fn settle(&self, group: Group, done: Done) -> Vec<(Origin, Done)> {
        match done.result {
            Err(_) if group.is_merged() => {
                let (origins, requests) = group.unmerged();
                let ticket = self.inner.submit(requests);
                origins.into_iter().zip(self.inner.wait(ticket)).collect()
            }
            result => group.distribute(result, done.epoch),
        }
    }
}

impl State {
    fn finish(&mut self, origin: Origin, done: Done) {
        let batch = self.batches.get_mut(&origin.batch).expect("a batch stays until all its parts are done");
        batch.requests[origin.request].finish(origin.part, done);
        batch.parts_open -= 1;
    }
}

impl Disk for Elevator {
    crate::forward_to!(inner: make_durable, epoch, durable);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let ticket = self.enqueue(&mut self.state.lock(), batch);
        self.fill();
        loop {
            let seen = self.moved.ticket();
            let mut state = self.state.lock();
            if state.pending.len() <= self.options.pending_max {
                return ticket;
            }
            let step = self.next_step(&mut state, ticket.0);
            drop(state);
            self.drive(seen, step);
        }
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        loop {
            let seen = self.moved.ticket();
            let mut state = self.state.lock();
            let batch = state.batches.get(&ticket.0);
            let batch = batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"));
            if batch.parts_open == 0 {
                let batch = state.batches.remove(&ticket.0).expect("found just now");
                let more = state.pending.len() > 0;
                drop(state);
                if more {
                    // This task may not return here for a while: keep the device working meanwhile.
                    self.fill();
                }
                return batch.requests.into_iter().map(Assembly::into_done).collect();
            }
            let step = self.next_step(&mut state, ticket.0);
            drop(state);
            self.drive(seen, step);
        }
    }

    /// Goes straight to the device if no request waits for it; otherwise the parts are queued.
    fn read_into(&self, parts: &mut [ReadPart<'_>], tag: Tag) -> Result<(), DiskError> {
        let whole = parts.iter().all(|part| part.into.len() <= self.limits.transfer_bytes_max);
        {
            let mut state = self.state.lock();
            if !whole || state.pending.len() > 0 || self.is_full(&state) {
                drop(state);
                return read_by_copy(self, parts, tag);
            }
            state.passing += 1;
        }
        let result = self.inner.read_into(parts, tag);
        self.state.lock().passing -= 1;
        self.rt.signal(&self.moved);
        result
    }
}

#[cfg(test)]
mod tests;
