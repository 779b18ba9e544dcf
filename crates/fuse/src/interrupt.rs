//! Requests that can be given up: a caller that is interrupted or killed during a long operation waits for its reply.
//!
//! An interrupt sets a mark that the operation asks for between its steps ([`interrupted`]). A caller that is *killed* is answered at
//! once, also while its operation waits for the device: the operation goes on, its result is dropped, and what the kernel caches
//! of its file is dropped when it has ended ([`FileSystem::given_up`](crate::FileSystem::given_up)).
//!
//! The kernel tells of one interrupt for each request, and not of the kill that follows. So the watcher asks /proc about callers
//! that were interrupted. An interrupt travels another way than its request, and may be here first.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::crew::Alarm;
use crate::ring::Berth;

/// Interrupts that are kept for requests that are not known yet. Most are for short ones that nothing waits for.
const EARLY_MAX: usize = 64;
/// Requests at once for which there is room without asking for memory.
const RUNNING_USUAL: usize = 512;
/// SIGKILL, as a bit of the masks in /proc.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// What has become of a long request.
#[derive(Debug, Default)]
struct Mark {
    interrupted: AtomicBool,
    given_up: AtomicBool,
}

thread_local! {
    /// Of the long request that this thread serves, if it does.
    static MARK: Arc<Mark> = Arc::default();
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

fn is_marked(flag: impl FnOnce(&Mark) -> &AtomicBool) -> bool {
    SERVES.get() && MARK.with(|mark| flag(mark).load(Ordering::Relaxed))
}

/// Returns true if the caller of the request that this thread serves has been interrupted or killed. A handler of an operation that takes
/// long (FALLOCATE, COPY_FILE_RANGE) asks between its steps, and answers `EINTR` or what it has done so far.
pub fn interrupted() -> bool {
    is_marked(|mark| &mark.interrupted)
}

/// Returns true if the request that this thread serves has been answered in its place, because its caller was killed. The kernel may have
/// forgotten its file.
pub fn given_up() -> bool {
    is_marked(|mark| &mark.given_up)
}

/// How a request can be answered by another thread than its own.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// It cannot.
    Nothing,
    /// By a message to the device.
    Device,
    /// By committing its entry, which lies in this berth.
    Entry(Arc<Berth>),
}

/// A request whose caller was killed.
pub(crate) struct Doomed<'a> {
    pub(crate) unique: u64,
    pub(crate) held: &'a Held,
}

struct Running {
    unique: u64,
    /// The calling thread.
    pid: u32,
    mark: Arc<Mark>,
    held: Held,
}

struct State {
    running: Vec<Running>,
    early: [u64; EARLY_MAX],
    next_early: usize,
}

/// The long requests that are being served. There are at most as many as threads.
pub(crate) struct Interrupts {
    state: Mutex<State>,
    ended: Condvar,
    alarm: OnceLock<Arc<Alarm>>,
}

impl Default for Interrupts {
    fn default() -> Self {
        let state = State { running: Vec::with_capacity(RUNNING_USUAL), early: [0; EARLY_MAX], next_early: 0 };
        Interrupts { state: Mutex::new(state), ended: Condvar::new(), alarm: OnceLock::new() }
    }
}

impl Interrupts {
    /// Has interrupts raise this alarm. To be called once.
    pub(crate) fn alert(&self, alarm: Arc<Alarm>) {
        let _ = self.alarm.set(alarm);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the calling thread hear of an interrupt of request `unique`, made by thread `pid`, until the guard is dropped.
    pub(crate) fn watch(&self, unique: u64, pid: u32, held: Held) -> Watched<'_> {
        let mark = MARK.with(Arc::clone);
        let mut state = self.state();
        let is_early = state.early.contains(&unique);
        mark.interrupted.store(is_early, Ordering::Relaxed);
        mark.given_up.store(false, Ordering::Relaxed);
        SERVES.set(true);
        state.running.push(Running { unique, pid, mark, held });
        drop(state);
        if is_early {
            self.raise();
        }
        Watched { interrupts: self, unique }
    }

    /// Request `unique` was interrupted. Requests that are short or done take no notice.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        if let Some(found) = state.running.iter().find(|running| running.unique == unique) {
            found.mark.interrupted.store(true, Ordering::Relaxed);
            drop(state);
            return self.raise();
        }
        let at = state.next_early;
        state.early[at] = unique;
        state.next_early = (at + 1) % EARLY_MAX;
    }

    fn raise(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.raise();
        }
    }

    /// Gives up the requests whose callers were killed, if `answer` can answer them. True while interrupted requests go on.
    pub(crate) fn end_killed(&self, mut answer: impl FnMut(Doomed<'_>) -> bool) -> bool {
        let goes_on = |running: &&Running| {
            let can_end = !matches!(running.held, Held::Nothing) && !running.mark.given_up.load(Ordering::Relaxed);
            can_end && running.mark.interrupted.load(Ordering::Relaxed)
        };
        let asked: Vec<_> = self.state().running.iter().filter(goes_on).map(|one| (one.unique, one.pid)).collect();
        let killed = asked.iter().filter(|(_, pid)| is_killed(*pid));
        let mut ended = 0;
        for (unique, _) in killed {
            let state = self.state();
            let Some(found) = state.running.iter().find(|running| running.unique == *unique) else { continue };
            if answer(Doomed { unique: *unique, held: &found.held }) {
                found.mark.given_up.store(true, Ordering::Relaxed);
                ended += 1;
            }
        }
        ended < asked.len()
    }

    /// Waits until no request goes on that was given up: the kernel does not know of them any more.
    pub(crate) fn wait_for_given_up(&self) {
        let going_on = |state: &mut State| state.running.iter().any(|one| one.mark.given_up.load(Ordering::Relaxed));
        drop(self.ended.wait_while(self.state(), going_on).unwrap_or_else(PoisonError::into_inner));
    }
}

/// True if a thread is about to end because of SIGKILL.
fn is_killed(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|mask| mask & KILL_BIT != 0)
}

/// A request that can be interrupted, while its handler runs.
pub(crate) struct Watched<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
}

impl Watched<'_> {
    /// The operation has ended, and is not given up from now on. True if it was before.
    pub(crate) fn end(&self) -> bool {
        SERVES.set(false);
        let mut state = self.interrupts.state();
        let was_given_up = MARK.with(|mark| mark.given_up.load(Ordering::Relaxed));
        if !was_given_up {
            state.running.retain(|running| running.unique != self.unique);
        }
        was_given_up
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        SERVES.set(false);
        self.interrupts.state().running.retain(|running| running.unique != self.unique);
        self.interrupts.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_reaches_the_thread_that_serves_the_request_until_it_is_done() {
        let interrupts = Interrupts::default();
        let watched = interrupts.watch(7, 0, Held::Nothing);
        interrupts.interrupt(8);
        assert!(!interrupted(), "another request");
        interrupts.interrupt(7);
        assert!(interrupted());
        drop(watched);
        assert!(!interrupted());
        interrupts.interrupt(7);
        let _next = interrupts.watch(9, 0, Held::Nothing);
        assert!(!interrupted());
    }

    #[test]
    fn an_interrupt_that_is_here_before_its_request_is_kept() {
        let interrupts = Interrupts::default();
        for unique in 1..=EARLY_MAX as u64 {
            interrupts.interrupt(unique * 2);
        }
        let first = interrupts.watch(2, 0, Held::Nothing);
        assert!(interrupted());
        drop(first);
        interrupts.interrupt(1000);
        let _overwritten = interrupts.watch(2, 0, Held::Nothing);
        assert!(!interrupted(), "only the latest are kept");
    }

    #[test]
    fn requests_of_living_callers_are_not_given_up() {
        let interrupts = Interrupts::default();
        let watched = interrupts.watch(4, std::process::id(), Held::Device);
        assert!(!interrupts.end_killed(|_| panic!("not interrupted")));
        interrupts.interrupt(4);
        assert!(interrupts.end_killed(|_| panic!("not killed")));
        assert!(!given_up() && !watched.end());
        assert!(!interrupts.end_killed(|_| panic!("ended")));
        assert!(!is_killed(u32::MAX));
    }
}
