//! The thread that answers page faults.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::error::RegionError;
use super::memory::Memory;
use super::pager::Pager;
use crate::device::Swap;

/// The interval of the swap's background steps: a writer of the volume may be waiting for an area's space.
const TEND_INTERVAL: Duration = Duration::from_millis(100);

/// The running thread that answers faults. It ends when this is dropped.
pub(super) struct Handler {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Handler {
    pub(super) fn start(
        swap: Arc<Swap>,
        memory: Arc<Memory>,
        pager: Arc<Mutex<Pager>>,
    ) -> Result<Handler, RegionError> {
        let fail = |source| RegionError::Host { what: "starting the pager", source };
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
        let stop = Arc::new(stop);
        let mut serving = Serving { swap, memory, pager, stop: Arc::clone(&stop), tended: Instant::now(), more: false };
        let serve = move || {
            block_signals();
            let _abort = AbortOnPanic;
            while serving.step() {}
        };
        let thread = Builder::new().name("moafs-pager".to_owned()).spawn(serve).map_err(fail)?;
        Ok(Handler { stop, thread: Some(thread) })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // The write adds to an eventfd's counter; any number but zero will do, in any byte order.
        let told = rustix::io::write(&*self.stop, &[1; 8]);
        debug_assert!(told.is_ok(), "eventfd: {told:?}");
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has ended the process already.
            let _ = thread.join();
        }
    }
}

/// Aborts the process if the thread panics: a thread that waits for a page would wait for ever, or read zeros once the
/// userfaultfd is closed.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Blocks all signals in this thread: a signal handler of the program may touch the region, and
/// here it would wait for itself.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used, and outlives the calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

struct Serving {
    swap: Arc<Swap>,
    memory: Arc<Memory>,
    pager: Arc<Mutex<Pager>>,
    stop: Arc<OwnedFd>,
    tended: Instant,
    /// True if the background step has more to do.
    more: bool,
}

impl Serving {
    /// Waits for a fault, the end or the next background step, and handles it. Returns false when
    /// the thread is to end.
    fn step(&mut self) -> bool {
        if self.is_told_to_stop() {
            return false;
        }
        while let Some(fault) = self.memory.uffd.next().expect("a userfaultfd can be read") {
            self.pager.lock().answer(fault);
            self.run_background_step();
        }
        self.run_background_step();
        true
    }

    fn is_told_to_stop(&self) -> bool {
        let wait = if self.more { Duration::ZERO } else { TEND_INTERVAL.saturating_sub(self.tended.elapsed()) };
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.memory.uffd, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => fds[1].revents().contains(PollFlags::IN),
            Err(errno) => panic!("poll: {errno}"),
        }
    }

    fn run_background_step(&mut self) {
        if !self.more && self.tended.elapsed() < TEND_INTERVAL {
            return;
        }
        self.tended = Instant::now();
        self.more = self.swap.run_background_step().unwrap_or_else(|_| {
            self.pager.lock().note_tend_error();
            false
        });
    }
}
