//! One processor for all programs: a runtime on which computing takes turns.
//!
//! On [`moafs_runtime::Virtual`] every task has a processor of its own. Here they compete for one:
//! a task that needs it waits in line and gets it for a slice at a time. Waiting for a device
//! leaves it to the others.

use std::collections::VecDeque;
use std::sync::Arc;

use moafs_runtime::{Event, Rt, Runtime, Task, Ticket, Time, Timestamp, Woken};
use parking_lot::Mutex;

/// Length of a slice in nanoseconds. FreeBSD's was 100 ms, but a program that had waited for a
/// device came before one that had computed; short slices in turn come to the same.
const SLICE_NS: u64 = 1_000_000;

/// A runtime with one processor.
pub struct OneProcessor {
    inner: Rt,
    line: Mutex<Line>,
    turn: Event,
}

#[derive(Default)]
struct Line {
    busy: bool,
    next: u64,
    waiting: VecDeque<u64>,
    used_ns: u64,
}

impl OneProcessor {
    /// Makes the processor of the machine that runs on `inner`.
    pub fn new(inner: Rt) -> Arc<OneProcessor> {
        Arc::new(OneProcessor { inner, line: Mutex::default(), turn: Event::new() })
    }

    /// Returns the time it was busy, in nanoseconds.
    pub fn used_ns(&self) -> u64 {
        self.line.lock().used_ns
    }

    fn take(&self) {
        let number = {
            let mut line = self.line.lock();
            if !line.busy && line.waiting.is_empty() {
                line.busy = true;
                return;
            }
            let number = line.next;
            line.next += 1;
            line.waiting.push_back(number);
            number
        };
        loop {
            let ticket = self.turn.ticket();
            {
                let mut line = self.line.lock();
                if !line.busy && line.waiting.front() == Some(&number) {
                    line.waiting.pop_front();
                    line.busy = true;
                    return;
                }
            }
            self.inner.wait(&self.turn, ticket, None);
        }
    }

    fn give(&self, used_ns: u64) {
        let mut line = self.line.lock();
        line.busy = false;
        line.used_ns += used_ns;
        let wanted = !line.waiting.is_empty();
        drop(line);
        if wanted {
            self.inner.signal(&self.turn);
        }
    }
}

impl Runtime for OneProcessor {
    fn now(&self) -> Time {
        self.inner.now()
    }

    fn timestamp(&self) -> Timestamp {
        self.inner.timestamp()
    }

    fn wait(&self, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken {
        self.inner.wait(event, ticket, until)
    }

    fn signal(&self, event: &Event) {
        self.inner.signal(event);
    }

    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Task {
        self.inner.spawn(name, task)
    }

    fn compute(&self, ns: u64) {
        if ns == 0 {
            return self.inner.compute(0);
        }
        let mut left = ns;
        while left > 0 {
            let slice = left.min(SLICE_NS);
            self.take();
            self.inner.compute(slice);
            self.give(slice);
            left -= slice;
        }
    }

    fn is_virtual(&self) -> bool {
        self.inner.is_virtual()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_runtime::{Virtual, sleep_until};

    #[test]
    fn programs_take_turns_and_waiting_leaves_the_processor() {
        let runtime = Virtual::new(None);
        let cpu = OneProcessor::new(runtime.rt());
        let rt: Rt = Arc::clone(&cpu) as Rt;
        let ends = Arc::new(Mutex::new(Vec::new()));
        runtime.run(|| {
            for (name, ns) in [("long", 10 * SLICE_NS), ("short", 2 * SLICE_NS)] {
                let (rt, ends) = (Rt::clone(&rt), Arc::clone(&ends));
                let work = move || {
                    rt.compute(ns);
                    ends.lock().push((name, rt.now().0 / SLICE_NS));
                };
                runtime.spawn(name, Box::new(work));
            }
            let (rt, ends) = (Rt::clone(&rt), Arc::clone(&ends));
            let sleeper = move || {
                sleep_until(&*rt, Time(5 * SLICE_NS));
                ends.lock().push(("sleeper", rt.now().0 / SLICE_NS));
            };
            runtime.spawn("sleeper", Box::new(sleeper));
        });
        assert_eq!(*ends.lock(), [("short", 4), ("sleeper", 5), ("long", 12)]);
        assert_eq!(cpu.used_ns(), 12 * SLICE_NS);
    }
}
