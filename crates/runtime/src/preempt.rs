//! [`Preemptive`]: virtual time in which every lock, every release and every atomic may switch the running task.
//!
//! Tasks are coroutines on the thread that calls [`Preemptive::run`], so a switch costs some tens of nanoseconds, and
//! a simulation can afford one at every scheduling point. Which task runs is decided by a seeded [`Strategy`]: a
//! random walk, or priorities with a few change points (PCT: Burckhardt et al., ASPLOS 2010). The same seed gives the
//! same run.
//!
//! Invariants:
//!
//! 1. One task runs at a time. It is left only in [`Runtime::wait`], in [`Runtime::compute`], at a [`point`] (before a
//!    leaf mutex is taken, after it is released, at an atomic), or when it finds a leaf mutex taken.
//! 2. Time passes by a fixed amount at every point, and jumps to the earliest deadline when no task is ready.
//! 3. No lock of this module is held across a switch.
//! 4. A panic in a task, or a state in which every task waits without a deadline, ends the run: [`Preemptive::run`]
//!    panics with the report. The stacks of the other tasks are then leaked rather than unwound: what their
//!    destructors wait for would never come.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::task::Progress;
use crate::virt::{EPOCH_SECS, message};
use crate::{Event, Rt, Runtime, Task, Ticket, Time, Timestamp, Woken};

/// Bytes of a task's stack. Only pages that are touched cost memory.
const STACK_BYTES: usize = 1 << 20;

/// Stacks kept for the next tasks of the same thread.
const STACKS_KEPT: usize = 16;

/// The rule by which the next task is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// At each point the task is left with a chance of one in `one_in`; the next is drawn evenly.
    RandomWalk {
        /// The mean distance of switches or change points, in scheduling points; at least 1.
        one_in: u32,
    },
    /// The ready task with the highest priority runs; at change points, `one_in` points apart on average, the running
    /// task's priority becomes the lowest.
    Priorities {
        /// The mean distance of switches or change points, in scheduling points; at least 1.
        one_in: u32,
    },
}

/// The parameters of a run; the same values give the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The seed of the generator behind every random decision.
    pub seed: u64,
    /// The rule by which the next task is chosen.
    pub strategy: Strategy,
    /// Nanoseconds that pass at each scheduling point.
    pub point_ns: u64,
    /// A run that passes more points than this does not end by itself: it fails.
    pub points_max: u64,
}

type Suspender = Yielder<(), ()>;

/// The task that runs on this thread.
#[derive(Clone, Copy)]
struct Here {
    runtime: NonNull<Preemptive>,
    task: u64,
    suspender: NonNull<Suspender>,
}

thread_local! {
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// A runtime in virtual time that preempts.
pub struct Preemptive {
    state: Mutex<State>,
}

struct State {
    now: u64,
    rng: Pcg64Mcg,
    config: Config,
    /// Points until the next switch or change of priorities.
    countdown: u64,
    tasks: BTreeMap<u64, Entry>,
    next_task: u64,
    current: u64,
    ready: VecDeque<u64>,
    /// Ready times of the waits with a deadline: (deadline in ns, order of waiting, task).
    deadlines: BTreeSet<(u64, u64, u64)>,
    waits: u64,
    /// Priorities of tasks whose priority has been lowered count down from here.
    lowest: i64,
    /// Tasks that were spawned and have no coroutine yet.
    newborn: Vec<(u64, Body)>,
    /// Tasks that wait for a leaf mutex.
    leaf_waiters: usize,
    over: Option<String>,
    counts: Counts,
}

/// The number of scheduling points and switches so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Scheduling points passed by all tasks.
    pub points: u64,
    /// Switches from one task to another.
    pub switches: u64,
}

struct Body {
    task: Box<dyn FnOnce() + Send>,
    progress: Arc<Progress>,
}

struct Entry {
    name: String,
    priority: i64,
    status: Status,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready(Woken),
    Waiting { event: usize, order: u64, until: Option<u64> },
    Leaf(usize),
}

/// Returns true if a task of a preemptive runtime is running on this thread.
#[inline]
pub(crate) fn is_task() -> bool {
    HERE.get().is_some()
}

/// Marks a scheduling point. Does nothing on threads that run no task, and while a panic unwinds.
#[inline]
pub fn point() {
    if let Some(here) = HERE.get() {
        // SAFETY: the runtime outlives the run, and `HERE` is set only while it runs.
        unsafe { here.runtime.as_ref() }.point(here);
    }
}

/// Waits until the leaf mutex at this address may be free.
pub(crate) fn wait_for_leaf(address: usize) {
    let here = HERE.get().expect("only tasks wait through the scheduler");
    // SAFETY: as in `point`.
    unsafe { here.runtime.as_ref() }.wait_for_leaf(here, address);
}

/// Lets tasks that wait for the leaf mutex at this address try again; a scheduling point.
pub(crate) fn leaf_released(address: usize) {
    if let Some(here) = HERE.get() {
        // SAFETY: as in `point`.
        unsafe { here.runtime.as_ref() }.leaf_released(here, address);
    }
}

impl Preemptive {
    /// Returns a runtime at time zero.
    pub fn new(config: Config) -> Arc<Preemptive> {
        let mut state = State {
            now: 0,
            rng: Pcg64Mcg::seed_from_u64(config.seed),
            config,
            countdown: 0,
            tasks: BTreeMap::new(),
            next_task: 0,
            current: 0,
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            waits: 0,
            lowest: 0,
            newborn: Vec::new(),
            leaf_waiters: 0,
            over: None,
            counts: Counts::default(),
        };
        state.draw_countdown();
        Arc::new(Preemptive { state: Mutex::new(state) })
    }

    /// Returns this runtime as the shared trait object that the code under test takes.
    pub fn rt(self: &Arc<Self>) -> Rt {
        Arc::clone(self) as Rt
    }

    /// Returns the number of scheduling points and switches so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Moves the clock `ns` nanoseconds forward; to be called while no task runs.
    pub fn advance(&self, ns: u64) {
        self.state.lock().now += ns;
    }

    /// Runs `f` as the first task, and then all spawned tasks to their end. Can be called again; the clock goes on.
    ///
    /// # Panics
    /// If a task panics or all tasks wait without a deadline; the message is the report.
    pub fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        assert!(HERE.get().is_none(), "a task cannot run a preemptive runtime");
        let result = Arc::new(Mutex::new(None));
        let into = Arc::clone(&result);
        drop(self.spawn("main", Box::new(move || *into.lock() = Some(f()))));
        let mut coroutines = BTreeMap::new();
        let report = self.run_tasks(&mut coroutines);
        if let Some(report) = report {
            let mut state = self.state.lock();
            (state.tasks, state.ready, state.deadlines) = Default::default();
            std::mem::forget(std::mem::take(&mut state.newborn));
            coroutines.into_values().for_each(std::mem::forget);
            drop(state);
            panic!("{report}");
        }
        let result = result.lock().take();
        result.expect("the first task has ended without a panic")
    }

    /// Runs until no task is left, or returns the report of a deadlock or a panic.
    fn run_tasks(&self, coroutines: &mut BTreeMap<u64, Coroutine<(), (), ()>>) -> Option<String> {
        loop {
            let (next, newborn) = {
                let mut state = self.state.lock();
                if state.over.is_some() {
                    return state.over.take();
                }
                if state.tasks.is_empty() {
                    return None;
                }
                let Some(next) = state.choose() else { return Some(state.deadlock()) };
                if state.current != next {
                    state.counts.switches += 1;
                }
                state.current = next;
                (next, std::mem::take(&mut state.newborn))
            };
            for (id, body) in newborn {
                coroutines.insert(id, self.coroutine(id, body));
            }
            let coroutine = coroutines.get_mut(&next).expect("a ready task has a coroutine");
            // The coroutine sets what is missing when it starts, and whenever it is resumed.
            let result = coroutine.resume(());
            HERE.set(None);
            if let CoroutineResult::Return(()) = result {
                let stack = coroutines.remove(&next).expect("it has just run").into_stack();
                STACKS.with_borrow_mut(|stacks| {
                    if stacks.len() < STACKS_KEPT {
                        stacks.push(stack);
                    }
                });
            }
        }
    }

    fn coroutine(&self, id: u64, body: Body) -> Coroutine<(), (), ()> {
        let runtime = NonNull::from(self);
        let stack = STACKS.with_borrow_mut(Vec::pop);
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
        Coroutine::with_stack(stack, move |suspender: &Suspender, ()| {
            HERE.set(Some(Here { runtime, task: id, suspender: NonNull::from(suspender) }));
            // SAFETY: the runtime is borrowed by `run`, which resumes coroutines.
            unsafe { runtime.as_ref() }.live(id, body);
        })
    }

    /// Runs one task to its end and records the outcome; the body of its coroutine.
    fn live(&self, id: u64, body: Body) {
        let Body { task, progress } = body;
        let outcome = catch_unwind(AssertUnwindSafe(task));
        progress.finish(outcome.is_err());
        self.signal(progress.ended());
        let mut state = self.state.lock();
        let entry = state.tasks.remove(&id);
        if let Err(panic) = outcome {
            let name = entry.map_or_else(String::new, |entry| entry.name);
            state.over.get_or_insert(format!("task {name} panicked: {}", message(&*panic)));
        }
    }

    fn here(&self) -> Option<Here> {
        HERE.get().filter(|here| std::ptr::eq(here.runtime.as_ptr(), self))
    }

    /// Leaves the running task; returns when the scheduler resumes it, with the reason.
    fn switch(&self, here: Here) -> Woken {
        // SAFETY: the suspender lives on the stack of the coroutine that calls.
        unsafe { here.suspender.as_ref() }.suspend(());
        HERE.set(Some(here));
        match self.state.lock().tasks[&here.task].status {
            Status::Ready(woken) => woken,
            _ => unreachable!("a task that runs was made ready"),
        }
    }

    fn point(&self, here: Here) {
        self.point_with(here, |_| {});
    }

    /// Makes tasks ready with `before`, then passes a scheduling point.
    fn point_with(&self, here: Here, before: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        before(&mut state);
        if !std::thread::panicking() && state.pass_point(here.task) {
            state.make_ready(here.task, Woken::Signalled);
            drop(state);
            self.switch(here);
        }
    }

    fn wait_for_leaf(&self, here: Here, address: usize) {
        let mut state = self.state.lock();
        state.leaf_waiters += 1;
        state.tasks.get_mut(&here.task).expect("the caller is a task").status = Status::Leaf(address);
        drop(state);
        self.switch(here);
    }

    fn leaf_released(&self, here: Here, address: usize) {
        self.point_with(here, |state| {
            if state.leaf_waiters > 0 {
                state.wake_leaf_waiters(address);
            }
        });
    }

    /// Serves a wait outside of a run, which set-up code may do: the clock jumps to the deadline.
    fn wait_outside(state: &mut State, until: Option<Time>) -> Woken {
        let until = until.expect("deadlock: waiting outside of Preemptive::run for something that nothing does");
        state.now = state.now.max(until.0);
        Woken::TimedOut
    }
}

impl State {
    fn draw_countdown(&mut self) {
        let one_in = match self.config.strategy {
            Strategy::RandomWalk { one_in } | Strategy::Priorities { one_in } => one_in.max(1),
        };
        // Evenly between 1 and twice the mean: as good as a geometric distribution here, and cheaper.
        self.countdown = self.rng.random_range(1..=2 * u64::from(one_in) - 1);
    }

    /// Counts a point, or a wait; false if there were too many: the run is over.
    fn count_point(&mut self) -> bool {
        self.counts.points += 1;
        let max = self.config.points_max;
        if self.counts.points <= max {
            return true;
        }
        let report = || format!("no end after {max} scheduling points{}", waits(&self.tasks));
        self.over.get_or_insert_with(report);
        false
    }

    /// Passes a point; true if the running task is to be left.
    fn pass_point(&mut self, task: u64) -> bool {
        self.now += self.config.point_ns;
        if !self.count_point() {
            return true;
        }
        while let Some(&(until, _, sleeper)) = self.deadlines.first() {
            if until > self.now {
                break;
            }
            self.make_ready(sleeper, Woken::TimedOut);
        }
        self.countdown -= 1;
        let due = self.countdown == 0;
        if due {
            self.draw_countdown();
        }
        match self.config.strategy {
            Strategy::RandomWalk { .. } => due && !self.ready.is_empty(),
            Strategy::Priorities { .. } => {
                if due {
                    self.lowest -= 1;
                    self.tasks.get_mut(&task).expect("the caller is a task").priority = self.lowest;
                }
                let own = self.tasks[&task].priority;
                self.ready.iter().any(|other| self.tasks[other].priority > own)
            }
        }
    }

    fn wake_leaf_waiters(&mut self, address: usize) {
        let is_waiter = |(&id, entry): (&u64, &Entry)| (entry.status == Status::Leaf(address)).then_some(id);
        let waiters: Vec<u64> = self.tasks.iter().filter_map(is_waiter).collect();
        for task in waiters {
            self.leaf_waiters -= 1;
            self.make_ready(task, Woken::Signalled);
        }
    }

    fn make_ready(&mut self, task: u64, woken: Woken) {
        let entry = self.tasks.get_mut(&task).expect("a task that waits exists");
        if let Status::Waiting { until: Some(until), order, .. } = entry.status {
            self.deadlines.remove(&(until, order, task));
        }
        entry.status = Status::Ready(woken);
        self.ready.push_back(task);
    }

    fn make_waiting(&mut self, task: u64, event: usize, until: Option<u64>) {
        let order = self.waits;
        self.waits += 1;
        if let Some(until) = until {
            self.deadlines.insert((until, order, task));
        }
        self.tasks.get_mut(&task).expect("the caller is a task").status = Status::Waiting { event, order, until };
    }

    /// Takes the next task to run; moves the clock if none is ready now.
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
        let index = match self.config.strategy {
            Strategy::RandomWalk { .. } => self.rng.random_range(0..self.ready.len()),
            Strategy::Priorities { .. } => {
                let priority = |index: &usize| self.tasks[&self.ready[*index]].priority;
                (0..self.ready.len()).max_by_key(priority)?
            }
        };
        self.ready.remove(index)
    }

    /// Returns the tasks that wait for an event, in the order of waiting.
    fn waiters(&self, event: usize) -> Vec<u64> {
        let order = |(&task, entry): (&u64, &Entry)| match entry.status {
            Status::Waiting { event: it, order, .. } if it == event => Some((order, task)),
            _ => None,
        };
        let mut waiters: Vec<(u64, u64)> = self.tasks.iter().filter_map(order).collect();
        waiters.sort_unstable();
        waiters.into_iter().map(|(_, task)| task).collect()
    }

    fn deadlock(&self) -> String {
        format!("deadlock at {} ns: every task waits{}", self.now, waits(&self.tasks))
    }
}

/// Names the tasks that wait without a deadline.
fn waits(tasks: &BTreeMap<u64, Entry>) -> String {
    let mut report = String::new();
    for entry in tasks.values() {
        let what = match entry.status {
            Status::Ready(_) | Status::Waiting { until: Some(_), .. } => continue,
            Status::Waiting { until: None, .. } => "an event",
            Status::Leaf(_) => "a leaf mutex",
        };
        let _ = write!(report, "; {} waits for {what}", entry.name);
    }
    report
}

impl Runtime for Preemptive {
    fn now(&self) -> Time {
        Time(self.state.lock().now)
    }

    fn timestamp(&self) -> Timestamp {
        let now = self.state.lock().now;
        Timestamp::new(EPOCH_SECS + (now / 1_000_000_000) as i64, (now % 1_000_000_000) as u32)
    }

    fn wait(&self, event: &Event, ticket: Ticket, until: Option<Time>) -> Woken {
        let past = event.is_past(ticket);
        let Some(here) = self.here() else {
            return if past { Woken::Signalled } else { Self::wait_outside(&mut self.state.lock(), until) };
        };
        if past {
            self.point(here);
            return Woken::Signalled;
        }
        let mut state = self.state.lock();
        match until {
            Some(until) if until.0 <= state.now => state.make_ready(here.task, Woken::TimedOut),
            _ => state.make_waiting(here.task, std::ptr::from_ref(event).addr(), until.map(|t| t.0)),
        }
        // A task that does nothing but wait passes no point.
        state.count_point();
        drop(state);
        self.switch(here)
    }

    fn signal(&self, event: &Event) {
        event.advance();
        let mut state = self.state.lock();
        for task in state.waiters(std::ptr::from_ref(event).addr()) {
            state.make_ready(task, Woken::Signalled);
        }
        drop(state);
        if let Some(here) = self.here() {
            self.point(here);
        }
    }

    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Task {
        let progress = Arc::new(Progress::default());
        let mut state = self.state.lock();
        let id = state.next_task;
        state.next_task += 1;
        let priority = state.rng.random_range(1..i64::MAX);
        state.tasks.insert(id, Entry { name: name.to_owned(), priority, status: Status::Ready(Woken::Signalled) });
        state.ready.push_back(id);
        state.newborn.push((id, Body { task, progress: Arc::clone(&progress) }));
        Task::new(progress)
    }

    /// Sleeps for `ns`; with 0, a scheduling point.
    fn compute(&self, ns: u64) {
        let Some(here) = self.here() else {
            self.state.lock().now += ns;
            return;
        };
        if ns == 0 {
            return self.point(here);
        }
        let mut state = self.state.lock();
        let until = state.now.saturating_add(ns);
        state.make_waiting(here.task, 0, Some(until));
        drop(state);
        self.switch(here);
    }

    fn is_virtual(&self) -> bool {
        true
    }
}

impl std::fmt::Debug for Preemptive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Preemptive").field("now", &state.now).field("tasks", &state.tasks.len()).finish()
    }
}

#[cfg(test)]
mod tests;
