//! The threads that serve a session.
//!
//! Requests wait in queues of the kernel: /dev/fuse is one, io_uring has one for each CPU. A queue begins with a few
//! threads, and every operation may block one of them: on the device, on a lock, behind a full cache. A thread that
//! takes a request while no other of its queue is idle starts a spare before it serves. So no request waits behind
//! blocked ones, until all spares are blocked as well.
//!
//! - Spares of /dev/fuse end while enough others are idle. Those of io_uring stay, idle: the kernel takes no entry back
//!   before the mount ends.
//! - A request that came while its queue had no entry is handed over when an entry of that queue is committed, not when
//!   a new one is registered. So a new entry begins with a message that takes it round once
//!   ([`ring`](crate::ring)). No thread of the daemon makes a request of its own: killed, it would wait for itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use crate::abi::Opcode;
use crate::dev::{self, DevBuffers, Reader};
use crate::dispatch::Dispatcher;
use crate::exchange::Exchange;
use crate::fs::FileSystem;
use crate::ring::RingSlot;
use crate::types::NodeId;

/// A spare of /dev/fuse ends while more threads than this are idle; not at once, because it is soon wanted again.
const IDLE_MAX: usize = 8;

/// The requests that wait together.
#[derive(Clone, Copy, Debug)]
enum Requests {
    OfDevice,
    OfCpu(u16),
}

/// A queue of the kernel, and how many of its threads wait for a request.
#[derive(Debug)]
pub(crate) struct Queue {
    requests: Requests,
    /// Threads that wait, or are about to; registered ones only, but for a spare that is just starting.
    idle: AtomicUsize,
    /// The regular file of the latest request that may have blocked.
    file: AtomicU64,
}

impl Queue {
    fn new(requests: Requests, threads: usize) -> Arc<Queue> {
        Arc::new(Queue { requests, idle: AtomicUsize::new(threads), file: AtomicU64::new(0) })
    }
}

/// The threads of a session.
pub(crate) struct Crew<F: FileSystem> {
    dispatcher: Arc<Dispatcher<F>>,
    dev: Arc<OwnedFd>,
    /// Most bytes of data in a request or reply.
    payload_len: usize,
    spares_left: AtomicUsize,
    threads: Mutex<Vec<Member>>,
}

struct Member {
    is_spare: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl<F: FileSystem> Crew<F> {
    /// Creates a crew without threads.
    pub(crate) fn new(
        dispatcher: Arc<Dispatcher<F>>,
        dev: Arc<OwnedFd>,
        payload_len: usize,
        spares: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            dispatcher,
            dev,
            payload_len,
            spares_left: AtomicUsize::new(spares),
            threads: Mutex::default(),
        })
    }

    /// Starts `count` threads that read every request from /dev/fuse.
    pub(crate) fn start_readers(self: &Arc<Self>, count: usize) -> io::Result<()> {
        let queue = Queue::new(Requests::OfDevice, count);
        (0..count).try_for_each(|_| self.start_reader(Reader::Alone(self.post(&queue, false)), false))
    }

    /// Starts the thread that reads /dev/fuse beside rings.
    pub(crate) fn start_reader_beside_rings(self: &Arc<Self>) -> io::Result<()> {
        self.start_reader(Reader::BesideRings, false)
    }

    fn start_reader(self: &Arc<Self>, reader: Reader<F>, is_spare: bool) -> io::Result<()> {
        let buffers = DevBuffers::new(self.payload_len)?;
        let crew = Arc::clone(self);
        self.spawn("fuse-dev", is_spare, move || dev::serve(&crew.dispatcher, crew.dev.as_fd(), &reader, buffers))
    }

    /// Starts a thread per slot. Each sends the result of its registration.
    pub(crate) fn start_rings(
        self: &Arc<Self>,
        slots: Vec<RingSlot>,
        registered: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let mut numbers: Vec<u16> = slots.iter().map(RingSlot::queue).collect();
        numbers.sort_unstable();
        let threads = |of: u16| numbers.iter().filter(|&&number| number == of).count();
        let mut queues: Vec<(u16, Arc<Queue>)> =
            numbers.iter().map(|&number| (number, Queue::new(Requests::OfCpu(number), threads(number)))).collect();
        queues.dedup_by_key(|(number, _)| *number);
        for slot in slots {
            let at = queues.partition_point(|(number, _)| *number < slot.queue());
            let (post, registered, dev) = (self.post(&queues[at].1, false), registered.clone(), Arc::clone(&self.dev));
            self.spawn("fuse-ring", false, move || slot.serve(&post, dev.as_fd(), registered))?;
        }
        Ok(())
    }

    fn post(self: &Arc<Self>, queue: &Arc<Queue>, is_spare: bool) -> Post<F> {
        Post { crew: Arc::clone(self), queue: Arc::clone(queue), is_spare }
    }

    /// Starts one more thread for a queue, if a spare is left. Without it everything works, but requests may wait.
    fn start_spare(self: &Arc<Self>, queue: &Arc<Queue>) {
        let one_less = |left: usize| left.checked_sub(1);
        if self.spares_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return;
        }
        queue.idle.fetch_add(1, Ordering::Relaxed);
        let post = self.post(queue, true);
        let started = match queue.requests {
            Requests::OfDevice => self.start_reader(Reader::Alone(post), true),
            Requests::OfCpu(cpu) => RingSlot::new(cpu, self.payload_len).and_then(|slot| {
                let dev = Arc::clone(&self.dev);
                self.spawn("fuse-ring", true, move || slot.serve_as_spare(&post, dev.as_fd()))
            }),
        };
        // A spare that cannot be had now may be had at the next request. Its post has been dropped.
        let _ = started;
    }

    fn spawn(
        &self,
        name: &str,
        is_spare: bool,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut threads = self.threads.lock();
        // Spares come and go.
        threads.retain(|member| !member.is_spare || !member.thread.is_finished());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        threads.push(Member { is_spare, thread });
        Ok(())
    }

    /// Waits until the mount is gone and every thread has ended, and returns the first error.
    pub(crate) fn join(&self) -> io::Result<()> {
        let mut result = Ok(());
        // A thread that still runs may add a spare.
        loop {
            let Some(member) = self.threads.lock().pop() else { return result };
            let ended = member.thread.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
    }
}

/// Returns true for operations on the contents of a regular file: those that may block for long.
fn takes_long(opcode: u32) -> bool {
    use Opcode::{CopyFileRange, CopyFileRange64, Fallocate, Fsync, Read, Setattr, Write};
    let opcode = Opcode::from_number(opcode);
    opcode.is_some_and(|opcode| {
        matches!(opcode, CopyFileRange | CopyFileRange64 | Fallocate | Fsync | Read | Setattr | Write)
    })
}

/// The place of a thread at its queue. Dropped, it is free for another spare.
pub(crate) struct Post<F: FileSystem> {
    crew: Arc<Crew<F>>,
    queue: Arc<Queue>,
    is_spare: bool,
}

impl<F: FileSystem> Post<F> {
    /// Serves a request that the thread has taken; another thread is idle meanwhile.
    pub(crate) fn serve<E: Exchange>(&self, exchange: E) {
        let header = exchange.header();
        if takes_long(header.opcode) {
            self.queue.file.store(header.nodeid, Ordering::Relaxed);
        }
        if self.queue.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.crew.start_spare(&self.queue);
        }
        self.crew.dispatcher.dispatch(exchange);
        self.queue.idle.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a file that the kernel most likely knows: a request about it is being served, or was just now.
    pub(crate) fn file(&self) -> NodeId {
        NodeId(self.queue.file.load(Ordering::Relaxed))
    }

    /// Returns true if this is a spare, and enough others are idle.
    pub(crate) fn is_dispensable(&self) -> bool {
        self.is_spare && self.queue.idle.load(Ordering::Relaxed) > IDLE_MAX
    }
}

impl<F: FileSystem> Drop for Post<F> {
    fn drop(&mut self) {
        self.queue.idle.fetch_sub(1, Ordering::Relaxed);
        if self.is_spare {
            self.crew.spares_left.fetch_add(1, Ordering::Relaxed);
        }
    }
}
