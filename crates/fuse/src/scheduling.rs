//! The scheduling class of ring threads: SCHED_IDLE while requests come one after another.
//!
//! A client sleeps while its request is served, and the answer wakes it up. If client and daemon belong to different
//! POSIX sessions, the kernel's scheduler takes the CPU of the serving thread for busy and moves the client to another
//! one, which is asleep: a round trip takes about three times as long. A CPU on which only SCHED_IDLE threads run
//! counts as idle, so the client stays.
//!
//! But such threads get next to nothing of a CPU that others want. A guard therefore looks at the queues with
//! SCHED_IDLE threads every 10 ms. When few requests were served, the threads had to wait, or several clients are at
//! work, they return to their own class.

mod policy;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use policy::{Class, Policy, Seen, TICK};

/// A thread that serves so many requests within [`STREAK_TIME`] makes its queue SCHED_IDLE.
const STREAK: u64 = 64;
const STREAK_TIME: Duration = Duration::from_millis(20);
/// Looks at a thread that serves nothing: at each of the first, and at some later.
const QUIET_LOOKS: u64 = 100;
const QUIET_LOOK_EVERY: u64 = 16;
/// The directory with the threads of this process.
const TASKS: &str = "/proc/self/task";
/// Looks until the threads are listed although their number is the same: one may have taken another's place.
const LOOKS_UNTIL_A_WALK: u64 = 100;

/// The ring threads of a mount, and the guard of their class.
pub(crate) struct Guard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queues: Vec<Queue>,
    /// Not there before the guard runs, and where it cannot.
    guard: OnceLock<Thread>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Queue {
    members: Mutex<Vec<Member>>,
    /// A thread has served a streak; the guard takes the mark away.
    busy: AtomicBool,
}

/// A ring thread.
struct Member {
    tid: libc::pid_t,
    served: Arc<AtomicU64>,
    schedstat: File,
    stat: File,
    served_before: u64,
    waited_before: Duration,
    /// Looks since it served something.
    quiet_looks: u64,
}

impl Guard {
    /// Starts the guard of so many queues. It ends at once where the process may not change classes: that takes
    /// CAP_SYS_NICE.
    pub(crate) fn start(queues: usize) -> io::Result<Guard> {
        let queues = (0..queues).map(|_| Queue::default()).collect();
        let shared = Arc::new(Shared { queues, guard: OnceLock::new(), ended: AtomicBool::new(false) });
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new().name("fuse-guard".to_owned()).spawn(move || {
            if may_change_class() {
                mine.watch();
            }
        })?;
        Ok(Guard { shared, thread: Some(thread) })
    }

    /// Returns a queue for the thread that will serve it.
    pub(crate) fn queue(&self, number: u16) -> ServedQueue {
        ServedQueue { shared: Arc::clone(&self.shared), number: number.into() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot panic: it takes locks and makes system calls whose failures it ignores.
            let _ = thread.join();
        }
    }
}

/// The queue that a ring thread is about to serve.
pub(crate) struct ServedQueue {
    shared: Arc<Shared>,
    number: usize,
}

impl ServedQueue {
    /// Begins, in the thread that serves the queue.
    pub(crate) fn begin(self) -> Pace {
        // SAFETY: takes nothing, and cannot fail.
        let tid = unsafe { libc::gettid() };
        let served = Arc::new(AtomicU64::new(0));
        // Without the files there is no telling whether the thread waits: it keeps its class.
        if let Ok(member) = Member::new(tid, Arc::clone(&served)) {
            self.shared.queues[self.number].members.lock().push(member);
        }
        Pace { queue: self, tid, served, streak_from: Instant::now() }
    }
}

/// Counts the requests that a ring thread serves.
pub(crate) struct Pace {
    queue: ServedQueue,
    tid: libc::pid_t,
    served: Arc<AtomicU64>,
    streak_from: Instant,
}

impl Pace {
    /// Counts a request.
    pub(crate) fn count(&mut self) {
        let served = self.served.load(Ordering::Relaxed) + 1;
        self.served.store(served, Ordering::Relaxed);
        if !served.is_multiple_of(STREAK) {
            return;
        }
        let now = Instant::now();
        if now - self.streak_from <= STREAK_TIME {
            self.queue.shared.mark_busy(self.queue.number);
        }
        self.streak_from = now;
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        // The kernel may give the number to another thread.
        self.queue.shared.queues[self.queue.number].members.lock().retain(|member| member.tid != self.tid);
    }
}

impl Shared {
    fn mark_busy(&self, queue: usize) {
        if !self.queues[queue].busy.swap(true, Ordering::AcqRel)
            && let Some(guard) = self.guard.get()
        {
            guard.unpark();
        }
    }

    fn watch(&self) {
        let mut policies: Vec<_> = self.queues.iter().map(|_| Policy::new(Instant::now())).collect();
        // A mark set from now on wakes this thread; the first look sees the marks set until now.
        self.guard.get_or_init(thread::current);
        let mut tasks = Tasks::default();
        while !self.ended.load(Ordering::Acquire) {
            let steps = self.queues.iter().zip(&mut policies).map(|(queue, policy)| queue.step(policy));
            let returned = steps.filter(|step| *step == Some(Class::Own)).count() > 0;
            let watching = policies.iter().any(Policy::is_watching);
            if returned || watching && tasks.may_have_changed() {
                self.return_heirs();
            }
            if watching {
                thread::sleep(TICK);
            } else {
                thread::park();
            }
        }
    }

    /// Returns threads that serve no queue to the ordinary class. They have inherited the other one from the ring
    /// thread that started them, or for which the kernel did (workers of io_uring).
    fn return_heirs(&self) {
        let serving: BTreeSet<_> = self.queues.iter().flat_map(Queue::tids).collect();
        let others = task_ids().filter(|tid| !serving.contains(tid));
        others.filter(|&tid| class_number(tid) == libc::SCHED_IDLE.into()).for_each(|tid| {
            set_class(tid, Class::Own);
        });
    }
}

impl Queue {
    fn tids(&self) -> Vec<libc::pid_t> {
        self.members.lock().iter().map(|member| member.tid).collect()
    }

    /// Returns the class that its threads have been given, if it is another one.
    fn step(&self, policy: &mut Policy) -> Option<Class> {
        let busy = self.busy.swap(false, Ordering::AcqRel);
        if !busy && !policy.is_watching() {
            return None;
        }
        let mut members = self.members.lock();
        let seen = members.iter_mut().map(Member::look).fold(Seen::default(), Seen::and);
        let class = policy.step(Instant::now(), busy, seen)?;
        members.iter().for_each(|member| {
            set_class(member.tid, class);
        });
        Some(class)
    }
}

/// Tells cheaply whether this process may have new threads.
#[derive(Default)]
struct Tasks {
    count: u64,
    looks: u64,
}

impl Tasks {
    /// Returns true if the number of threads is another one than at the last look, and at times for those that took the
    /// place of others.
    fn may_have_changed(&mut self) -> bool {
        let count = std::fs::metadata(TASKS).map_or(0, |metadata| metadata.nlink());
        let before = std::mem::replace(&mut self.count, count);
        self.looks += 1;
        count != before || self.looks.is_multiple_of(LOOKS_UNTIL_A_WALK)
    }
}

/// The threads of this process.
fn task_ids() -> impl Iterator<Item = libc::pid_t> {
    let entries = std::fs::read_dir(TASKS).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

impl Member {
    fn new(tid: libc::pid_t, served: Arc<AtomicU64>) -> io::Result<Member> {
        let open = |name| File::open(format!("{TASKS}/{tid}/{name}"));
        let (schedstat, stat) = (open("schedstat")?, open("stat")?);
        Ok(Member { tid, served, schedstat, stat, served_before: 0, waited_before: Duration::ZERO, quiet_looks: 0 })
    }

    /// Returns what has happened since the last look. The time that a thread waits for its CPU counts only when it has
    /// got it; of one that served nothing, the state tells.
    fn look(&mut self) -> Seen {
        let all = self.served.load(Ordering::Relaxed);
        let served = all - self.served_before;
        if served == 0 {
            self.quiet_looks += 1;
            // The kernel prefers threads that served lately; the states of all others would be too many to read.
            let is_due = self.quiet_looks <= QUIET_LOOKS || self.quiet_looks.is_multiple_of(QUIET_LOOK_EVERY);
            return Seen { starves: is_due && wants_cpu(&self.stat), ..Seen::default() };
        }
        self.quiet_looks = 0;
        self.served_before = all;
        let all = waited(&self.schedstat).unwrap_or(self.waited_before);
        let waited = all.saturating_sub(self.waited_before);
        self.waited_before = all;
        Seen { served, by_busiest: served, waited, starves: false }
    }
}

/// Reads the second number of a schedstat: nanoseconds that the thread has waited for a CPU.
fn waited(schedstat: &File) -> Option<Duration> {
    let mut text = [0; 96];
    let len = schedstat.read_at(&mut text, 0).ok()?;
    let nanos = std::str::from_utf8(&text[..len]).ok()?.split_whitespace().nth(1)?;
    Some(Duration::from_nanos(nanos.parse().ok()?))
}

/// Returns the kernel's number of a thread's class; 0 is the calling thread.
fn class_number(tid: libc::pid_t) -> libc::c_long {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) }
}

/// Tells whether a thread runs or waits for a CPU.
fn wants_cpu(stat: &File) -> bool {
    let mut text = [0; 64];
    let len = stat.read_at(&mut text, 0).unwrap_or(0);
    // The state follows the name, which is in brackets.
    let after_name = text[..len].rsplit(|byte| *byte == b')').next();
    after_name.is_some_and(|text| text.starts_with(b" R"))
}

/// Tells whether the calling thread has the ordinary class and may take both.
fn may_change_class() -> bool {
    class_number(0) == libc::SCHED_OTHER.into() && set_class(0, Class::Idle) && set_class(0, Class::Own)
}

/// Gives the calling thread the ordinary class, if it has inherited `SCHED_IDLE` from the serving thread that started
/// it.
pub fn leave_idle_class() {
    if class_number(0) == libc::SCHED_IDLE.into() {
        set_class(0, Class::Own);
    }
}

/// Changes the class of a thread (0: the calling one); its nice value stays. Returns false if that is refused.
fn set_class(tid: libc::pid_t, class: Class) -> bool {
    let policy = match class {
        Class::Own => libc::SCHED_OTHER,
        Class::Idle => libc::SCHED_IDLE,
    };
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads a `sched_param`, which is one number.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const priority) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_thread_waited_is_read_from_the_kernel() {
        let schedstat = File::open("/proc/thread-self/schedstat").expect("a schedstat");
        assert!(waited(&schedstat).is_some());
        let stat = File::open("/proc/thread-self/stat").expect("a stat");
        assert!(wants_cpu(&stat));
    }

    #[test]
    fn a_thread_that_an_idle_one_has_started_returns_to_the_ordinary_class() {
        if !may_change_class() {
            eprintln!("SKIPPED: changing the scheduling class takes CAP_SYS_NICE");
            return;
        }
        let guard = Guard::start(1).unwrap();
        let queue = guard.queue(0);
        let classes = thread::spawn(move || {
            let pace = queue.begin();
            set_class(0, Class::Idle);
            let heir = thread::spawn(move || {
                let inherited = class_number(0);
                guard.shared.return_heirs();
                [inherited, class_number(0)]
            });
            let [inherited, returned] = heir.join().unwrap();
            drop(pace);
            [inherited, returned, class_number(0)]
        });
        let [idle, ordinary] = [libc::SCHED_IDLE, libc::SCHED_OTHER].map(libc::c_long::from);
        assert_eq!(classes.join().unwrap(), [idle, ordinary, idle]);
    }

    #[test]
    fn a_thread_that_ended_is_no_member() {
        let guard = Guard::start(1).unwrap();
        let queue = guard.queue(0);
        thread::spawn(move || {
            let mut pace = queue.begin();
            (0..STREAK).for_each(|_| pace.count());
            assert_eq!(pace.queue.shared.queues[0].members.lock().len(), 1);
        })
        .join()
        .unwrap();
        assert!(guard.shared.queues[0].members.lock().is_empty());
    }
}
