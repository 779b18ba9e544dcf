//! The threads of a session, and those that stand in for them.
//!
//! Requests wait in *lanes*: over /dev/fuse there is one, over io_uring one for each CPU. Every operation may block: on the device, on
//! a lock, behind a full cache. A lane whose threads are all busy for long gets more of them, so that whoever asks for little does
//! not wait for whoever asks for much.
//!
//! - A thread is *long* at its request when the watcher finds it at the same one [`LONG`] later. Threads only count their turns.
//! - A lane is relieved when none of its threads is free and fewer than it began with are not long. It then gets as many as are
//!   long, at least as many as it began with: a burst is caught up with in a few rounds.
//! - Stand-ins of /dev/fuse end when others are free. Those of io_uring stay: the kernel takes no entry back before the mount ends.
//! - A request that came while a queue had no entry is handed over when an entry of that queue is committed, not when a new one is
//!   registered. So a new entry begins with a request that it causes itself ([`kick`]).
//!
//! The watcher sleeps while every lane has a thread that is free. It also ends requests whose caller was killed
//! ([`crate::interrupt`]).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::dev::{self, DevBuffers, Reader};
use crate::dispatch::Dispatcher;
use crate::errno::Errno;
use crate::fs::FileSystem;
use crate::interrupt::{Doomed, Held};
use crate::ring::{self, RingServer, RingSlot};

/// A thread that is at one request for so long does not count as one that serves its lane.
const LONG: Duration = Duration::from_millis(5);
/// How often the watcher looks while a lane has no free thread, or an interrupted request goes on.
const TICK: Duration = Duration::from_millis(3);

/// Which requests wait in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// Those of /dev/fuse.
    Device(Reader),
    /// Those of one CPU's io_uring queue.
    Queue(u16),
}

/// Where requests wait for one of several threads.
#[derive(Debug)]
pub(crate) struct Lane {
    kind: LaneKind,
    /// Threads it began with.
    base: usize,
    /// Threads that wait for a request. May be off by those that are just coming or going.
    free: AtomicUsize,
    seats: Mutex<Vec<Arc<Seat>>>,
    alarm: Arc<Alarm>,
}

/// One thread of a lane.
#[derive(Debug, Default)]
struct Seat {
    /// Odd while it is at a request.
    turns: AtomicU64,
    /// The watcher's: the turn it last saw, and when it saw it first, in milliseconds since the session began.
    seen_turn: AtomicU64,
    seen_ms: AtomicU64,
}

/// What wakes the watcher.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    raised: AtomicBool,
    watcher: OnceLock<Thread>,
}

impl Alarm {
    /// Has the watcher look, if it does not already.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel)
            && let Some(watcher) = self.watcher.get()
        {
            watcher.unpark();
        }
    }
}

impl Lane {
    fn new(kind: LaneKind, base: usize, alarm: Arc<Alarm>) -> Arc<Lane> {
        Arc::new(Lane { kind, base, free: AtomicUsize::new(0), seats: Mutex::default(), alarm })
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the calling thread to be.
    pub(crate) fn sit(self: &Arc<Lane>, is_stand_in: bool) -> Sitting {
        let seat = Arc::new(Seat::default());
        self.seats().push(Arc::clone(&seat));
        self.free.fetch_add(1, Ordering::Relaxed);
        Sitting { lane: Arc::clone(self), seat, is_stand_in }
    }

    /// How many threads the lane lacks.
    fn lacks(&self, now_ms: u64) -> usize {
        if self.free.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        let seats = self.seats();
        let long = seats.iter().filter(|seat| seat.is_long(now_ms)).count();
        let quick = seats.len() - long;
        if quick < self.base { long.max(self.base) - quick.min(long) } else { 0 }
    }
}

impl Seat {
    fn is_long(&self, now_ms: u64) -> bool {
        let turn = self.turns.load(Ordering::Relaxed);
        if turn != self.seen_turn.load(Ordering::Relaxed) {
            self.seen_turn.store(turn, Ordering::Relaxed);
            self.seen_ms.store(now_ms, Ordering::Relaxed);
        }
        turn % 2 == 1 && now_ms - self.seen_ms.load(Ordering::Relaxed) >= LONG.as_millis() as u64
    }
}

/// A thread's place in a lane, until it ends.
#[derive(Debug)]
pub(crate) struct Sitting {
    lane: Arc<Lane>,
    seat: Arc<Seat>,
    is_stand_in: bool,
}

impl Sitting {
    /// A request has come.
    pub(crate) fn begin(&self) {
        self.seat.turns.fetch_add(1, Ordering::Relaxed);
        if self.lane.free.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.lane.alarm.raise();
        }
    }

    /// It is answered. True: others are free, and this thread may go.
    pub(crate) fn end(&self) -> bool {
        self.seat.turns.fetch_add(1, Ordering::Relaxed);
        self.lane.free.fetch_add(1, Ordering::Relaxed) > self.lane.base && self.is_stand_in
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        if self.seat.turns.load(Ordering::Relaxed).is_multiple_of(2) {
            self.lane.free.fetch_sub(1, Ordering::Relaxed);
        }
        self.lane.seats().retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }
}

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Serves,
    StandsIn,
    Watches,
}

#[derive(Debug)]
struct Member {
    role: Role,
    thread: JoinHandle<io::Result<()>>,
}

/// The threads of a session.
pub(crate) struct Crew<F: FileSystem> {
    dispatcher: Arc<Dispatcher<F>>,
    dev: Arc<OwnedFd>,
    target: CString,
    max_write: usize,
    stand_ins_max: usize,
    lanes: Mutex<Vec<Arc<Lane>>>,
    members: Mutex<Vec<Member>>,
    stand_ins: AtomicUsize,
    names: AtomicUsize,
    alarm: Arc<Alarm>,
    is_over: AtomicBool,
    began: Instant,
}

impl<F: FileSystem> Crew<F> {
    /// A crew without threads.
    pub(crate) fn new(
        dispatcher: Arc<Dispatcher<F>>,
        dev: Arc<OwnedFd>,
        target: CString,
        max_write: u32,
        stand_ins_max: usize,
    ) -> Arc<Crew<F>> {
        let alarm = Arc::new(Alarm::default());
        dispatcher.interrupts().alert(Arc::clone(&alarm));
        Arc::new(Crew {
            dispatcher,
            dev,
            target,
            max_write: max_write as usize,
            stand_ins_max,
            lanes: Mutex::default(),
            members: Mutex::default(),
            stand_ins: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            alarm,
            is_over: AtomicBool::new(false),
            began: Instant::now(),
        })
    }

    fn lane(&self, kind: LaneKind, base: usize) -> Arc<Lane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.iter().find(|lane| lane.kind == kind) {
            return Arc::clone(lane);
        }
        let lane = Lane::new(kind, base, Arc::clone(&self.alarm));
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// Starts threads that read the device.
    pub(crate) fn start_readers(self: &Arc<Self>, reader: Reader, count: usize) -> io::Result<()> {
        let lane = self.lane(LaneKind::Device(reader), count);
        (0..count).try_for_each(|_| self.start_reader(reader, lane.sit(false)))
    }

    fn start_reader(self: &Arc<Self>, reader: Reader, sitting: Sitting) -> io::Result<()> {
        let buffers = DevBuffers::new(self.max_write)?;
        let crew = Arc::clone(self);
        let serve = move || dev::serve(&crew.dispatcher, crew.dev.as_fd(), reader, buffers, &sitting);
        self.spawn(Role::Serves, "dev", serve)
    }

    /// Starts a thread per slot; what came of its registration is told to `registered`.
    pub(crate) fn start_ring(
        self: &Arc<Self>,
        slots: Vec<RingSlot>,
        registered: &mpsc::Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let base = slots.iter().filter(|slot| slot.queue() == slots[0].queue()).count();
        for slot in slots {
            let sitting = self.lane(LaneKind::Queue(slot.queue()), base).sit(false);
            let (crew, registered) = (Arc::clone(self), registered.clone());
            let serve = move || {
                let mut server = RingServer::new(Box::new(slot), crew.dev.as_fd(), sitting);
                server.register(registered).and_then(|first| server.serve(&crew.dispatcher, first))
            };
            self.spawn(Role::Serves, "ring", serve)?;
        }
        Ok(())
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, role: Role, kind: &str, serve: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let thread = thread::Builder::new().name(format!("fuse-{kind}-{number}")).spawn(serve)?;
        let mut members = self.members();
        // A stand-in that has ended has nothing to tell.
        members.retain(|member| member.role != Role::StandsIn || !member.thread.is_finished());
        members.push(Member { role, thread });
        Ok(())
    }

    /// Starts the watcher. Without one everything works, but a lane has the threads it has.
    pub(crate) fn watch(self: &Arc<Self>) -> io::Result<()> {
        if self.stand_ins_max == 0 {
            return Ok(());
        }
        let crew = Arc::clone(self);
        let watcher = thread::Builder::new().name("fuse-watch".to_owned()).spawn(move || {
            crew.look_after();
            Ok(())
        })?;
        // Set once, here. An alarm from before is found when the watcher begins.
        let _ = self.alarm.watcher.set(watcher.thread().clone());
        self.members().push(Member { role: Role::Watches, thread: watcher });
        Ok(())
    }

    fn look_after(self: &Arc<Self>) {
        while !self.is_over.load(Ordering::Acquire) {
            if !self.alarm.raised.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            // Lowered before looking: what happens after the look raises it again.
            self.alarm.raised.store(false, Ordering::Release);
            let busy = self.relieve() | self.end_killed();
            if busy {
                self.alarm.raised.store(true, Ordering::Release);
            }
            thread::sleep(TICK);
        }
    }

    /// Adds threads where they lack. True if it has to be looked again.
    fn relieve(self: &Arc<Self>) -> bool {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut is_busy = false;
        for lane in lanes {
            if lane.free.load(Ordering::Relaxed) == 0 {
                is_busy = true;
                let now_ms = self.began.elapsed().as_millis() as u64;
                // What cannot be had now may be had at the next look.
                let _ = (0..lane.lacks(now_ms)).try_for_each(|_| self.hire(&lane));
            }
        }
        is_busy
    }

    /// One more thread for a lane.
    fn hire(self: &Arc<Self>, lane: &Arc<Lane>) -> io::Result<()> {
        let taken = self.stand_ins.fetch_add(1, Ordering::Relaxed);
        let leave = Leave(Arc::clone(self));
        if taken >= self.stand_ins_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let crew = Arc::clone(self);
        match lane.kind {
            LaneKind::Device(reader) => {
                let buffers = DevBuffers::new(self.max_write)?;
                let sitting = lane.sit(true);
                self.spawn(Role::StandsIn, "dev", move || {
                    let _leave = leave;
                    dev::serve(&crew.dispatcher, crew.dev.as_fd(), reader, buffers, &sitting)
                })
            }
            LaneKind::Queue(queue) => {
                let slot = RingSlot::new(queue, self.max_write)?;
                let sitting = lane.sit(true);
                self.spawn(Role::StandsIn, "ring", move || {
                    let _leave = leave;
                    let mut server = RingServer::new(Box::new(slot), crew.dev.as_fd(), sitting);
                    // One that is refused is one fewer, and not the end of the session.
                    let Ok(first) = server.register(mpsc::channel().0) else { return Ok(()) };
                    if first.is_none() {
                        crew.kick(queue);
                    }
                    server.serve(&crew.dispatcher, first)
                })
            }
        }
    }

    /// Causes a request in the queue of a CPU: its answer makes the kernel hand over what waits there. From a thread of its own, which
    /// may have to wait, and is not waited for: the new entry may be the only one that can answer it.
    fn kick(&self, queue: u16) {
        let target = self.target.clone();
        // Without it, what waits is handed over later.
        let _ = thread::Builder::new().name("fuse-kick".to_owned()).spawn(move || kick(queue, &target));
    }

    /// Answers requests whose callers were killed, without waiting for their operations. True if it has to be looked again.
    fn end_killed(self: &Arc<Self>) -> bool {
        self.dispatcher.interrupts().end_killed(|doomed| self.answer(doomed))
    }

    fn answer(self: &Arc<Self>, doomed: Doomed<'_>) -> bool {
        match doomed.held {
            Held::Device => {
                dev::answer_error(self.dev.as_fd(), doomed.unique, Errno::EINTR);
                true
            }
            Held::Entry(berth) => {
                let Some(slot) = berth.take() else { return false };
                let lane = self.lane(LaneKind::Queue(slot.queue()), 1);
                let (crew, slot_back) = (Arc::clone(self), Arc::new(Mutex::new(Some(slot))));
                let slot_in = Arc::clone(&slot_back);
                let unique = doomed.unique;
                let started = self.spawn(Role::Serves, "ring", move || {
                    let Some(slot) = slot_in.lock().unwrap_or_else(PoisonError::into_inner).take() else {
                        return Ok(());
                    };
                    let sitting = lane.sit(true);
                    let mut server = RingServer::adopting(slot, crew.dev.as_fd(), sitting, unique)?;
                    server.serve(&crew.dispatcher, None)
                });
                if started.is_err() {
                    // Its own thread answers, in its own time.
                    if let Some(slot) = slot_back.lock().unwrap_or_else(PoisonError::into_inner).take() {
                        berth.put(slot);
                    }
                }
                started.is_ok()
            }
            Held::Nothing => false,
        }
    }

    /// Waits until all threads have seen that the mount is gone. The error is the first that ended one.
    pub(crate) fn join(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            // The watcher goes last: it may have to answer for those that do not end by themselves.
            let next = {
                let mut members = self.members();
                let serving = members.iter().position(|member| member.role != Role::Watches);
                match serving.or((!members.is_empty()).then_some(0)) {
                    Some(index) => members.swap_remove(index),
                    None => return result,
                }
            };
            if next.role == Role::Watches {
                self.end_watch();
            }
            let ended = next.thread.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
    }

    /// Ends the watcher.
    pub(crate) fn end_watch(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(watcher) = self.alarm.watcher.get() {
            watcher.unpark();
        }
    }
}

/// A stand-in that ends makes room for another.
struct Leave<F: FileSystem>(Arc<Crew<F>>);

impl<F: FileSystem> Drop for Leave<F> {
    fn drop(&mut self) {
        self.0.stand_ins.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks for the free space of our own mount. Of whichever mount covers it by now: that does no harm.
fn kick(queue: u16, target: &CString) {
    ring::pin_to_cpu(queue);
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a NUL-terminated string, and room for the answer.
    unsafe { libc::statfs(target.as_ptr(), answer.as_mut_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(base: usize) -> Arc<Lane> {
        Lane::new(LaneKind::Queue(0), base, Arc::new(Alarm::default()))
    }

    #[test]
    fn a_lane_gets_threads_when_all_of_its_own_are_long_at_a_request() {
        let lane = lane(2);
        let mut sittings = vec![lane.sit(false), lane.sit(false)];
        sittings[0].begin();
        assert_eq!(lane.lacks(0), 0, "one is free");
        sittings[1].begin();
        assert!(lane.alarm.raised.load(Ordering::Relaxed));
        assert_eq!(lane.lacks(10), 0, "not known to be long yet");
        assert_eq!(lane.lacks(20), 2);
        sittings[1].end();
        sittings[1].begin();
        assert_eq!(lane.lacks(30), 1, "one is at another request");
        sittings.extend((0..6).map(|_| lane.sit(true)));
        sittings[2..].iter().for_each(Sitting::begin);
        assert_eq!((lane.lacks(31), lane.lacks(40)), (0, 8), "a burst is met by as many again");
    }

    #[test]
    fn stand_ins_leave_when_others_are_free() {
        let lane = lane(2);
        let (own, also_own, stand_in) = (lane.sit(false), lane.sit(false), lane.sit(true));
        own.begin();
        stand_in.begin();
        assert!(!stand_in.end(), "one thread of two is busy");
        assert!(!own.end());
        stand_in.begin();
        assert!(!own.lane.alarm.raised.load(Ordering::Relaxed));
        drop(also_own);
        assert!(!stand_in.end());
        let another = lane.sit(false);
        let third = lane.sit(false);
        stand_in.begin();
        assert!(stand_in.end());
        drop((another, third, stand_in));
        assert_eq!(lane.free.load(Ordering::Relaxed), 1);
    }
}
