//! Between the kernel and the drive: requests wait here, one thread serves them one by one and keeps the modelled time.
//!
//! The one idea: a reply is what lets the host go on, so holding it back is all that is needed to
//! make the host see a slow disk. *Unpaced*, the host is infinitely fast: after each command it
//! gets a moment to send whatever it can send without further answers ([`HOST_SETTLES`]); that
//! moment takes no modelled time, and the clock runs only while a command is served. *Paced*, a
//! request arrives at wall time x factor and its reply is held until the wall has reached the
//! command's end: the host's timers and queues see the drive as it would be, `factor` times as
//! fast.
//!
//! Invariants: one command at a time (the drive's own queue is off); a command starts no earlier
//! than the end of the one before and than the arrival of what it serves; bytes are stored when a
//! request arrives, in modelled time zero.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use moafs_disk::model::{Command, Drive};
use moafs_runtime::Time;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::queue::{Ask, Batch, Queue, RequestId};
use crate::stats::Stats;
use crate::trace::TraceFile;

/// Time without an arrival after which the host is taken to have sent all it can.
const HOST_SETTLES: Duration = Duration::from_micros(150);
/// Longest time that an unpaced host is given to send requests, even if it never pauses.
const HOST_SETTLES_MAX: Duration = Duration::from_millis(5);

/// The relation between modelled time and wall time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// No relation: the disk is as fast as the machine can serve it.
    Unpaced,
    /// Modelled time = wall time x factor.
    Paced(f64),
}

impl Pace {
    /// Returns the modelled time, in nanoseconds, at wall time `wall`; 0 if they are unrelated.
    fn modelled_ns(self, wall: Duration) -> u64 {
        match self {
            Pace::Unpaced => 0,
            Pace::Paced(factor) => (wall.as_nanos() as f64 * factor) as u64,
        }
    }

    /// Returns the wall time at modelled time `modelled_ns`.
    fn wall(self, modelled_ns: u64) -> Duration {
        match self {
            Pace::Unpaced => Duration::ZERO,
            Pace::Paced(factor) => Duration::from_nanos((modelled_ns as f64 / factor) as u64),
        }
    }
}

struct State {
    queue: Queue,
    /// Requests that are served, but whose callers have not woken up yet.
    served: BTreeSet<RequestId>,
    stats: Stats,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
    served: Condvar,
    pace: Pace,
    start: Instant,
}

/// The queue, the drive behind it, and the thread that serves.
pub(crate) struct Host {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

impl Host {
    /// Starts the thread that serves the queue.
    pub(crate) fn start(
        drive: Drive,
        transfer_bytes_max: u64,
        pace: Pace,
        trace: Option<TraceFile>,
    ) -> std::io::Result<Host> {
        let queue = Queue::new(transfer_bytes_max);
        let state = State { queue, served: BTreeSet::new(), stats: Stats::default(), closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            served: Condvar::new(),
            pace,
            start: Instant::now(),
        });
        let serving = Arc::clone(&shared);
        let serve = move || serving.serve(drive, transfer_bytes_max, trace);
        let server = std::thread::Builder::new().name("drive".to_owned()).spawn(serve)?;
        Ok(Host { shared, server: Some(server) })
    }

    /// Queues a request and returns when the drive has completed it.
    pub(crate) fn ask(&self, ask: Ask) {
        let shared = &self.shared;
        let arrived_ns = shared.now_ns();
        let mut state = shared.state.lock();
        let id = state.queue.push(ask, arrived_ns);
        state.stats.waiting_max = state.stats.waiting_max.max(state.queue.len() as u64);
        shared.arrived.notify_one();
        while !state.served.remove(&id) {
            shared.served.wait(&mut state);
        }
    }

    /// Returns the counters up to this moment.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.shared.state.lock().stats.clone();
        stats.elapsed_ns = stats.elapsed_ns.max(self.shared.now_ns());
        stats
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.arrived.notify_one();
        if let Some(server) = self.server.take() {
            // A panic there has been reported by the panic hook.
            let _ = server.join();
        }
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.pace.modelled_ns(self.start.elapsed())
    }

    fn serve(&self, mut drive: Drive, transfer_bytes_max: u64, mut trace: Option<TraceFile>) {
        let mut clock = Time(0);
        while let Some(batch) = self.next() {
            for ask in batch.ask.pieces(transfer_bytes_max) {
                let arrived = clock.max(Time(batch.arrived_ns));
                let command = Command::from(&ask);
                let service = drive.execute(arrived, command);
                clock = service.finished;
                if let Some(file) = &mut trace {
                    file.write(&ask, &service);
                }
                let stats = &mut self.state.lock().stats;
                stats.drive.add(&command, arrived, &service);
                stats.busy_ns += service.service_ns();
            }
            self.hold_until(clock);
            let mut state = self.state.lock();
            state.stats.elapsed_ns = clock.0;
            state.stats.background = drive.background();
            state.stats.flash = drive.flash();
            state.stats.merged += batch.ids.len() as u64 - 1;
            state.served.extend(batch.ids);
            self.served.notify_all();
        }
    }

    /// Waits for requests and takes the batch to serve next. `None`: the host has been dropped.
    fn next(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            while state.queue.len() == 0 {
                if state.closed {
                    return None;
                }
                self.arrived.wait(&mut state);
            }
            if self.pace == Pace::Unpaced {
                self.let_host_settle(&mut state);
            }
            if let Some(batch) = state.queue.pick() {
                return Some(batch);
            }
        }
    }

    /// Waits until the host sends nothing more by itself.
    fn let_host_settle(&self, state: &mut MutexGuard<'_, State>) {
        let until = Instant::now() + HOST_SETTLES_MAX;
        loop {
            let before = state.queue.arrivals();
            self.arrived.wait_for(state, HOST_SETTLES);
            if state.queue.arrivals() == before || Instant::now() >= until {
                return;
            }
        }
    }

    fn hold_until(&self, modelled: Time) {
        let until = self.pace.wall(modelled.0);
        std::thread::sleep(until.saturating_sub(self.start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Model;
    use crate::queue::Verb;

    const TRANSFER: u64 = 128 << 10;

    fn host(pace: Pace) -> Host {
        let drive = Model::load("st3160812as", &[]).unwrap().drive().unwrap();
        Host::start(drive, TRANSFER, pace, None).unwrap()
    }

    /// Reads far from one another: each takes milliseconds.
    fn far_read(number: u64) -> Ask {
        Ask::bytes(Verb::Read, number * 997 % 16 * (1 << 30), 4096)
    }

    #[test]
    fn unpaced_the_clock_runs_only_while_a_command_is_served() {
        let host = host(Pace::Unpaced);
        (1..5).for_each(|number| host.ask(far_read(number)));
        let before = host.stats();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(host.stats(), before);
        assert_eq!((before.drive.reads, before.drive.read_bytes), (4, 4 * 4096));
        assert_eq!((before.elapsed_ns, before.drive.idle_ns), (before.busy_ns, 0));
        assert!(before.elapsed_ns > 4_000_000, "{before:?}");
    }

    #[test]
    fn paced_a_reply_waits_for_the_wall() {
        let host = host(Pace::Paced(2.0));
        let start = Instant::now();
        (1..5).for_each(|number| host.ask(far_read(number)));
        let (wall, busy_ns) = (start.elapsed(), host.stats().busy_ns);
        assert!(wall * 2 >= Duration::from_nanos(busy_ns), "{wall:?}, busy {busy_ns} ns");
        std::thread::sleep(Duration::from_millis(20));
        let after = host.stats();
        assert!(after.elapsed_ns >= busy_ns + 40_000_000, "the wall's time passes for an idle drive, too: {after:?}");
    }

    #[test]
    fn what_waits_together_is_served_together() {
        let host = host(Pace::Unpaced);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let host = &host;
                scope.spawn(move || host.ask(Ask::bytes(Verb::Write, number * 4096, 4096)));
            }
        });
        host.ask(Ask::flush());
        let stats = host.stats();
        assert_eq!((stats.drive.written_bytes, stats.drive.flushes), (8 * 4096, 1));
        assert_eq!(stats.drive.writes + stats.merged, 8);
    }

    #[test]
    fn the_drive_sees_no_command_larger_than_it_takes() {
        let host = host(Pace::Unpaced);
        host.ask(Ask::bytes(Verb::Write, 0, 5 * TRANSFER / 2));
        assert_eq!((host.stats().drive.writes, host.stats().merged), (3, 0));
    }
}
