//! The threads that serve every request from /dev/fuse.
//!
//! An operation may block its thread for long: on the device, on a lock, behind a full cache. Requests of others must
//! not wait for it. But the kernel wakes threads that wait at the device in turn, each with cold caches: 64 of them
//! cost half as much processor time again. So few threads read at once. The last of them to take a request calls a
//! parked thread to read, or starts one, before it serves.
//!
//! Invariant: a thread reads, or has been called to, unless all threads that there may be are serving; the first of
//! them that ends then reads. So no request stays unread while a thread is free.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::dev::{DevBuffers, Received};
use crate::dispatch::Dispatcher;
use crate::fs::FileSystem;

/// Threads that stay parked; more of them end, and give their buffers back.
const PARKED_MAX: usize = 8;

/// The threads of a session over /dev/fuse.
pub(crate) struct Readers<F: FileSystem> {
    dispatcher: Arc<Dispatcher<F>>,
    dev: Arc<OwnedFd>,
    /// Most bytes of data in a request or reply.
    payload_len: usize,
    limits: Limits,
    crew: Mutex<Crew>,
    called: Condvar,
    handles: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

/// Bounds on the numbers of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Threads that wait at the device at once, and that are started with the session.
    pub(crate) reading_max: usize,
    /// Threads in all.
    pub(crate) threads_max: usize,
}

/// The threads that there are, by what they do. The others serve.
#[derive(Debug, Default)]
struct Crew {
    threads: usize,
    /// Threads that read, or have been called to.
    reading: usize,
    parked: usize,
    /// Calls that no parked thread has taken yet. The caller has counted one more as reading, one less as
    /// parked.
    calls: usize,
    /// True once a thread found that the mount is gone, or that it cannot be read.
    ended: bool,
}

/// The thread that is to read next, after the last reader has taken a request.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Parked,
    Fresh,
}

impl Crew {
    /// A reader takes a request. Returns the thread to call; `None` if another one reads already, or none can be had.
    fn take(&mut self, limits: Limits) -> Option<Next> {
        self.reading -= 1;
        if self.reading > 0 {
            return None;
        }
        if self.parked > 0 {
            self.parked -= 1;
            self.calls += 1;
            self.reading += 1;
            return Some(Next::Parked);
        }
        if self.threads < limits.threads_max && !self.ended {
            self.threads += 1;
            self.reading += 1;
            return Some(Next::Fresh);
        }
        None
    }
}

impl<F: FileSystem> Readers<F> {
    /// Starts the first threads.
    pub(crate) fn start(
        dispatcher: Arc<Dispatcher<F>>,
        dev: Arc<OwnedFd>,
        payload_len: usize,
        limits: Limits,
    ) -> io::Result<Arc<Self>> {
        let crew = Crew { threads: limits.reading_max, reading: limits.reading_max, ..Crew::default() };
        let (crew, called, handles) = (Mutex::new(crew), Condvar::new(), Mutex::default());
        let readers = Arc::new(Self { dispatcher, dev, payload_len, limits, crew, called, handles });
        (0..limits.reading_max).try_for_each(|_| readers.spawn())?;
        Ok(readers)
    }

    /// Starts a thread that has been counted.
    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let buffers = DevBuffers::new(self.payload_len)?;
        let readers = Arc::clone(self);
        let mut handles = self.handles.lock();
        // Threads come and go.
        handles.retain(|handle| !handle.is_finished());
        handles.push(thread::Builder::new().name("fuse-dev".to_owned()).spawn(move || readers.serve(buffers))?);
        Ok(())
    }

    /// Serves as one of the threads, until the mount is gone or enough others are free.
    fn serve(self: Arc<Self>, mut buffers: DevBuffers) -> io::Result<()> {
        loop {
            match buffers.receive(self.dev.as_fd()) {
                Ok(Received::Request(len)) => {
                    self.call_the_next();
                    buffers.answer(len, &self.dispatcher, self.dev.as_fd());
                    if !self.waits_for_its_turn() {
                        return Ok(());
                    }
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Unmounted) => {
                    self.end();
                    return Ok(());
                }
                Err(error) => {
                    self.end();
                    return Err(error);
                }
            }
        }
    }

    fn call_the_next(self: &Arc<Self>) {
        let next = self.crew.lock().take(self.limits);
        match next {
            None => {}
            Some(Next::Parked) => {
                self.called.notify_one();
            }
            // Without it everything works, but requests wait until a thread ends its operation.
            Some(Next::Fresh) if self.spawn().is_err() => {
                let mut crew = self.crew.lock();
                crew.threads -= 1;
                crew.reading -= 1;
            }
            Some(Next::Fresh) => {}
        }
    }

    /// Parks a thread that has served while enough others read. Returns false if it is not needed any more.
    fn waits_for_its_turn(&self) -> bool {
        let mut crew = self.crew.lock();
        if crew.reading < self.limits.reading_max {
            crew.reading += 1;
            return true;
        }
        if crew.parked == PARKED_MAX || crew.ended {
            crew.threads -= 1;
            return false;
        }
        crew.parked += 1;
        self.called.wait_while(&mut crew, |crew| crew.calls == 0 && !crew.ended);
        let is_called = crew.calls > 0;
        crew.calls -= usize::from(is_called);
        is_called
    }

    /// Takes a thread away that can read no more, and lets parked ones end. Others find out by themselves.
    fn end(&self) {
        let mut crew = self.crew.lock();
        crew.ended = true;
        crew.threads -= 1;
        crew.reading -= 1;
        drop(crew);
        self.called.notify_all();
    }

    /// Waits until the mount is gone and every thread has ended, and returns the first error.
    pub(crate) fn join(&self) -> io::Result<()> {
        let mut result = Ok(());
        // A thread that still runs may start another one, whose handle is here before the starter ends.
        loop {
            let Some(handle) = self.handles.lock().pop() else { return result };
            let ended = handle.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
    }
}
