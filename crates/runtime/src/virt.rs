//! [`Virtual`]: one baton, a clock that jumps, and a choice among ready tasks that repeats.
//!
//! Tasks are threads, so that the code under test is the code of a live mount; but only the one
//! that holds the baton runs. Invariants:
//!
//! 1. The baton changes hands only inside [`Runtime::wait`] and [`Runtime::compute`] (which the
//!    locks of [`crate::lock`] also call) and when a task ends. So none of them may be called while
//!    a plain mutex is held.
//! 2. The clock moves only when no task is ready, to the earliest deadline; a task that is alone
//!    never leaves its thread.
//! 3. Without a seed ready tasks run in the order in which they became ready. With a seed the next
//!    one is drawn, and a `wait` that need not block is a point of choice as well.
//! 4. No ready task and no deadline is a deadlock: [`Virtual::run`] panics and lists the waiting tasks. So
//!    does a panic in any task. The other tasks are unwound.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::task::Progress;
use crate::{Event, Rt, Runtime, Task, Ticket, Time, Timestamp, Woken};

/// The time of day at virtual time zero: 2001-09-09 01:46:40 UTC.
pub(crate) const EPOCH_SECS: i64 = 1_000_000_000;

/// The longest wait of a destructor while all tasks are unwound, in milliseconds.
const UNWIND_MS_MAX: u32 = 10_000;

/// The number of the task that [`Virtual::run`] runs itself. Spawned ones count from 1.
const MAIN: u64 = 0;

thread_local! {
    /// The task that this thread is, and the address of its runtime.
    static HERE: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// A runtime in virtual time.
pub struct Virtual {
    me: Weak<Virtual>,
    state: Mutex<State>,
    /// Signalled when the last task has ended, or the run was ended by a failure.
    idle: Condvar,
}

struct State {
    now: u64,
    rng: Option<Pcg64Mcg>,
    tasks: BTreeMap<u64, Entry>,
    next_task: u64,
    /// The task that holds the baton.
    current: Option<u64>,
    /// Ready tasks in the order in which they became ready.
    ready: VecDeque<u64>,
    /// Ready times of the waits with a deadline: (deadline in ns, order of waiting, task).
    deadlines: BTreeSet<(u64, u64, u64)>,
    waits: u64,
    threads: Vec<JoinHandle<()>>,
    /// The report of the failure that ended the run.
    over: Option<String>,
}

struct Entry {
    name: String,
    baton: Arc<Condvar>,
    status: Status,
}

#[derive(Clone, Copy)]
enum Status {
    /// The task holds the baton, or is ready and its wait will return this.
    Awake(Woken),
    Waiting(Waiting),
}

#[derive(Clone, Copy)]
struct Waiting {
    /// Address of the event: only compared, so it does not make runs differ. 0 for computing.
    event: usize,
    /// The number of this wait among all waits of the run.
    order: u64,
    until: Option<u64>,
    since: u64,
}

/// The panic payload that unwinds tasks after a failure; a message of their own would only repeat the reason.
struct Abandoned;

impl Virtual {
    /// Returns a runtime at time zero. With a seed, the choice among ready tasks is drawn from it.
    pub fn new(seed: Option<u64>) -> Arc<Virtual> {
        let state = State {
            now: 0,
            rng: seed.map(Pcg64Mcg::seed_from_u64),
            tasks: BTreeMap::new(),
            next_task: MAIN + 1,
            current: None,
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            waits: 0,
            threads: Vec::new(),
            over: None,
        };
        Arc::new_cyclic(|me| Virtual { me: Weak::clone(me), state: Mutex::new(state), idle: Condvar::new() })
    }

    /// Returns this runtime as the shared trait object that the code under test takes.
    pub fn rt(self: &Arc<Self>) -> Rt {
        Arc::clone(self) as Rt
    }

    /// Runs `f` as the first task, on this thread, and then the spawned tasks until all have
    /// ended. Can be called again afterwards; the clock goes on.
    ///
    /// # Panics
    /// If all tasks wait without a deadline or a task panics (the message is the report), and when `f` panics.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        self.enter();
        let outcome = catch_unwind(AssertUnwindSafe(f));
        let (report, threads) = self.leave(outcome.is_err());
        threads.into_iter().for_each(|thread| drop(thread.join()));
        match outcome {
            Err(panic) => resume_unwind(panic),
            Ok(_) if report.is_some() => panic!("{}", report.unwrap_or_default()),
            Ok(result) => result,
        }
    }

    fn enter(&self) {
        assert!(HERE.get().is_none(), "a task cannot run a virtual runtime");
        let mut state = self.state.lock();
        assert!(state.current.is_none(), "the virtual runtime runs already");
        let baton = Arc::new(Condvar::new());
        state.tasks.insert(MAIN, Entry { name: "main".into(), baton, status: Status::Awake(Woken::Signalled) });
        state.current = Some(MAIN);
        HERE.set(Some((self.address(), MAIN)));
    }

    /// Ends the first task, waits for the others, and returns the report of a failure with the threads to join.
    fn leave(&self, panicked: bool) -> (Option<String>, Vec<JoinHandle<()>>) {
        HERE.set(None);
        let mut state = self.state.lock();
        state.tasks.remove(&MAIN);
        if panicked {
            state.end_all("the first task panicked".into());
        } else {
            self.hand_on(&mut state);
        }
        while !state.tasks.is_empty() {
            self.idle.wait(&mut state);
        }
        state.current = None;
        (state.over.take(), std::mem::take(&mut state.threads))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the calling task; `None` on a thread that is no task of this runtime.
    fn here(&self) -> Option<u64> {
        HERE.get().filter(|(runtime, _)| *runtime == self.address()).map(|(_, task)| task)
    }

    /// Gives the baton to the next task, if any is left.
    fn hand_on(&self, state: &mut State) {
        state.current = None;
        if state.tasks.is_empty() {
            self.idle.notify_all();
            return;
        }
        match state.choose() {
            Some(next) => {
                state.current = Some(next);
                state.tasks[&next].baton.notify_one();
            }
            None => {
                let report = state.deadlock();
                state.end_all(report);
            }
        }
    }

    /// Gives the baton away and waits until it comes back.
    fn pass(&self, state: &mut MutexGuard<'_, State>, me: u64) -> Woken {
        self.hand_on(state);
        self.await_baton(state, me)
    }

    fn await_baton(&self, state: &mut MutexGuard<'_, State>, me: u64) -> Woken {
        let baton = Arc::clone(&state.tasks[&me].baton);
        while state.current != Some(me) && state.over.is_none() {
            baton.wait(state);
        }
        if let Some(reason) = &state.over {
            let reason = reason.clone();
            // Unwinding takes the lock again in destructors.
            MutexGuard::unlocked(state, || abandon(me, &reason));
        }
        match state.tasks[&me].status {
            Status::Awake(woken) => woken,
            Status::Waiting(_) => unreachable!("who gets the baton was made ready"),
        }
    }

    /// Waits after a failure has ended the run. Destructors may still wait for locks that others release
    /// while they unwind; any other wait would never end.
    fn wait_while_unwinding(&self, me: u64, reason: &str) -> Woken {
        thread_local! {
            static WAITED_MS: Cell<u32> = const { Cell::new(0) };
        }
        if !std::thread::panicking() {
            abandon(me, reason);
        }
        WAITED_MS.set(WAITED_MS.get() + 1);
        if WAITED_MS.get() > UNWIND_MS_MAX {
            eprintln!("a destructor waits for ever after: {reason}");
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(1));
        Woken::TimedOut
    }

    /// Serves the wait of a thread that is no task, which set-up code may do while there are no tasks.
    fn wait_outside(&self, state: &mut State, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken {
        if event.is_past(ticket) {
            return Woken::Signalled;
        }
        assert!(state.current.is_none(), "only tasks may wait while a virtual runtime runs");
        let until = until.expect("deadlock: waiting outside of Virtual::run for something that nobody does");
        state.now = state.now.max(until.0);
        Woken::TimedOut
    }

    /// Runs a spawned task to its end and records the outcome; the body of its thread.
    fn live(&self, id: u64, task: Box<dyn FnOnce() + Send>, progress: &Progress) {
        HERE.set(Some((self.address(), id)));
        let body = || {
            self.await_baton(&mut self.state.lock(), id);
            task();
        };
        let outcome = catch_unwind(AssertUnwindSafe(body));
        progress.finish(outcome.is_err());
        self.signal(progress.ended());
        let mut state = self.state.lock();
        let entry = state.tasks.remove(&id);
        if let Err(panic) = outcome {
            let name = entry.map_or_else(String::new, |entry| entry.name);
            state.end_all(format!("task {name} panicked: {}", message(&*panic)));
        }
        if state.over.is_none() {
            self.hand_on(&mut state);
        } else if state.tasks.is_empty() {
            self.idle.notify_all();
        }
    }
}

/// Unwinds a task: the first one with the reason, the others silently.
fn abandon(task: u64, reason: &str) {
    if task == MAIN {
        panic!("{reason}");
    }
    resume_unwind(Box::new(Abandoned));
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

impl State {
    fn make_ready(&mut self, task: u64, woken: Woken) {
        let entry = self.tasks.get_mut(&task).expect("a task that waits exists");
        if let Status::Waiting(Waiting { until: Some(until), order, .. }) = entry.status {
            self.deadlines.remove(&(until, order, task));
        }
        entry.status = Status::Awake(woken);
        self.ready.push_back(task);
    }

    fn make_waiting(&mut self, task: u64, event: usize, until: Option<u64>) {
        let order = self.waits;
        self.waits += 1;
        if let Some(until) = until {
            self.deadlines.insert((until, order, task));
        }
        let waiting = Waiting { event, order, until, since: self.now };
        self.tasks.get_mut(&task).expect("the caller is a task").status = Status::Waiting(waiting);
    }

    /// Takes the next task to run; moves the clock if no task is ready now.
    fn choose(&mut self) -> Option<u64> {
        if self.ready.is_empty() {
            let &(earliest, ..) = self.deadlines.first()?;
            self.now = self.now.max(earliest);
        }
        while let Some(&(until, _, task)) = self.deadlines.first() {
            if until > self.now {
                break;
            }
            self.make_ready(task, Woken::TimedOut);
        }
        let index = match &mut self.rng {
            Some(rng) => rng.random_range(0..self.ready.len()),
            None => 0,
        };
        self.ready.remove(index)
    }

    /// Returns the tasks that wait for an event, in the order of waiting.
    fn waiters(&self, event: usize) -> Vec<u64> {
        let order = |(&task, entry): (&u64, &Entry)| match entry.status {
            Status::Waiting(waiting) if waiting.event == event => Some((waiting.order, task)),
            _ => None,
        };
        let mut waiters: Vec<(u64, u64)> = self.tasks.iter().filter_map(order).collect();
        waiters.sort_unstable();
        waiters.into_iter().map(|(_, task)| task).collect()
    }

    fn end_all(&mut self, reason: String) {
        self.over.get_or_insert(reason);
        self.tasks.values().for_each(|entry| _ = entry.baton.notify_one());
    }

    /// Returns the report of a deadlock: each waiting task and its event. Events have no names: they are numbered in
    /// the order of their mention.
    fn deadlock(&self) -> String {
        let mut report = format!("deadlock at {} ns: every task waits", self.now);
        let mut events: Vec<usize> = Vec::new();
        for entry in self.tasks.values() {
            let Status::Waiting(waiting) = entry.status else { continue };
            let number = events.iter().position(|&e| e == waiting.event).unwrap_or_else(|| {
                events.push(waiting.event);
                events.len() - 1
            });
            let _ = write!(report, "; {} waits for event {number} since {} ns", entry.name, waiting.since);
        }
        report
    }
}

impl Runtime for Virtual {
    fn now(&self) -> Time {
        Time(self.state.lock().now)
    }

    fn timestamp(&self) -> Timestamp {
        let now = self.state.lock().now;
        Timestamp::new(EPOCH_SECS + (now / 1_000_000_000) as i64, (now % 1_000_000_000) as u32)
    }

    fn wait(&self, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken {
        let mut state = self.state.lock();
        let Some(me) = self.here() else {
            return self.wait_outside(&mut state, event, ticket, until);
        };
        if let Some(reason) = state.over.clone() {
            drop(state);
            return self.wait_while_unwinding(me, &reason);
        }
        let past = event.is_past(ticket);
        if past && state.rng.is_none() {
            return Woken::Signalled;
        }
        match until {
            _ if past => state.make_ready(me, Woken::Signalled),
            Some(until) if until.0 <= state.now => state.make_ready(me, Woken::TimedOut),
            _ => state.make_waiting(me, std::ptr::from_ref(event).addr(), until.map(|t| t.0)),
        }
        self.pass(&mut state, me)
    }

    fn signal(&self, event: &Event) {
        event.advance();
        let mut state = self.state.lock();
        for task in state.waiters(std::ptr::from_ref(event).addr()) {
            state.make_ready(task, Woken::Signalled);
        }
    }

    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Task {
        let me = self.me.upgrade().expect("a runtime in use is alive");
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let mut state = self.state.lock();
        let id = state.next_task;
        state.next_task += 1;
        let status = Status::Awake(Woken::Signalled);
        state.tasks.insert(id, Entry { name: name.to_owned(), baton: Arc::new(Condvar::new()), status });
        state.ready.push_back(id);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || me.live(id, task, &shared));
        state.threads.push(thread.unwrap_or_else(|e| panic!("cannot start thread {name}: {e}")));
        Task::new(progress)
    }

    /// Sleeps for `ns`: every task has a processor of its own. With 0, lets other ready tasks run.
    fn compute(&self, ns: u64) {
        let mut state = self.state.lock();
        let until = state.now.saturating_add(ns);
        let nobody_before = state.ready.is_empty() && state.deadlines.first().is_none_or(|&(t, ..)| t > until);
        let Some(me) = self.here() else {
            state.now = until;
            return;
        };
        if nobody_before || state.over.is_some() {
            state.now = until;
            return;
        }
        if ns == 0 {
            state.make_ready(me, Woken::TimedOut);
        } else {
            state.make_waiting(me, 0, Some(until));
        }
        self.pass(&mut state, me);
    }

    fn is_virtual(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Virtual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Virtual").field("now", &state.now).field("tasks", &state.tasks.len()).finish()
    }
}

#[cfg(test)]
mod tests;
