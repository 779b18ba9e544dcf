//! A mount being served: handshake, threads, end.
//!
//! Order at the start: everything that can fail without a mount (rings, buffers), mount, handshake, threads, and for
//! io_uring the registration of every entry; only then is the mount attached to the tree and reported done. A failure
//! takes it away again. The end is always the kernel's: the mount is gone, every thread sees it and returns.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use crate::abi;
use crate::dev::{self, DevBuffers};
use crate::dispatch::Dispatcher;
use crate::error::MountError;
use crate::exchange::out_header;
use crate::fs::FileSystem;
use crate::init::{self, InitConfig, InitError, InitFlags, InitStep, Negotiated, Transport};
use crate::mount::{self, Mount, Prepared, Unmounted};
use crate::notify::Notifier;
use crate::op_times::OpTimes;
use crate::options::{MountFlags, SessionOptions};
use crate::readers::{Limits, Readers};
use crate::ring::{self, RingSlot};
use crate::scheduling::Guard;

/// Bounds on the default number of threads that read /dev/fuse at once: beyond some number they only wake each other.
const DEV_THREADS_MIN: usize = 2;
const DEV_THREADS_MAX: usize = 16;

/// A mount and the threads that serve it. The mount is usable from the moment [`Session::mount`] returns. Dropping a
/// session instead of serving it detaches the mount and does not wait; `destroy` is then only called by the kernel.
pub struct Session<F: FileSystem> {
    dispatcher: Arc<Dispatcher<F>>,
    dev: Arc<OwnedFd>,
    negotiated: Negotiated,
    /// The threads of rings, and the one beside them.
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The guard of the ring threads' scheduling class.
    guard: Option<Guard>,
    /// The threads that read every request from /dev/fuse.
    readers: Option<Arc<Readers<F>>>,
    mount: MountGuard,
}

impl<F: FileSystem> Session<F> {
    /// Mounts, agrees with the kernel, and starts the serving threads. A daemon that forks into the background does so
    /// *before*: threads do not survive a fork.
    pub fn mount(fs: F, target: &Path, options: &SessionOptions) -> Result<Self, MountError> {
        let slots = make_rings(options)?;
        Self::mount_with_rings(fs, target, options, slots)
    }

    fn mount_with_rings(
        fs: F,
        target: &Path,
        options: &SessionOptions,
        slots: Vec<RingSlot>,
    ) -> Result<Self, MountError> {
        let Prepared { dev, tree, mount } = mount::prepare(target, &options.mount)?;
        let mount = MountGuard(Arc::new(MountState { mount, gone: AtomicBool::new(false) }));
        let negotiated = handshake(&dev, &options.init, fs.keeps_open_state(), !slots.is_empty())?;
        let writeback = negotiated.flags.contains(InitFlags::WRITEBACK_CACHE);
        let dev = Arc::new(dev);
        fs.init(&negotiated, Notifier::new(Arc::downgrade(&dev)));
        let dispatcher = Arc::new(Dispatcher::new(Arc::new(fs), negotiated.flags));
        let mut session = Self { dispatcher, dev, negotiated, threads: Vec::new(), guard: None, readers: None, mount };
        session.start(slots, options)?;
        session.mount.0.mount.attach(tree)?;
        session.mount.0.mount.tune(writeback);
        Ok(session)
    }

    /// Returns the result of the handshake.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the file system.
    pub fn fs(&self) -> &Arc<F> {
        self.dispatcher.fs()
    }

    /// Returns the counters of requests and of their times.
    pub fn op_times(&self) -> Arc<OpTimes> {
        Arc::clone(self.dispatcher.times())
    }

    /// Returns a handle to the mount for another thread, such as one that waits for signals.
    pub fn mount_handle(&self) -> MountHandle {
        MountHandle(Arc::clone(&self.mount.0))
    }

    /// Returns a handle to tell the kernel that its caches are out of date.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.dev))
    }

    /// Serves until the mount is gone, calls the file system's `destroy` if the kernel did not, and returns. The error
    /// is the first that ended a serving thread.
    pub fn serve(mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            result = result.and(ended);
        }
        let result = result.and(self.readers.take().map_or(Ok(()), |readers| readers.join()));
        self.mount.0.gone.store(true, Ordering::Release);
        self.dispatcher.destroy_once();
        result
    }

    fn start(&mut self, slots: Vec<RingSlot>, options: &SessionOptions) -> Result<(), MountError> {
        let uring = self.negotiated.transport == Transport::Uring;
        if !uring && options.transport == Transport::Uring {
            return Err(MountError::Uring(NOT_OFFERED.to_owned()));
        }
        if !uring {
            return self.start_readers(options);
        }
        self.start_reader_beside_rings()?;
        match (self.start_ring_threads(slots), options.transport) {
            (Ok(()), _) => Ok(()),
            (Err(RingStartError::Thread(error)), _) => Err(MountError::Thread(error)),
            (Err(RingStartError::Register(error)), Transport::Uring) => {
                Err(MountError::Uring(format!("registering a queue: {error}")))
            }
            // The kernel has turned back to /dev/fuse at the failed registration.
            (Err(RingStartError::Register(_)), _) => {
                self.negotiated.transport = Transport::Dev;
                self.start_readers(options)
            }
        }
    }

    fn start_readers(&mut self, options: &SessionOptions) -> Result<(), MountError> {
        let reading_max = dev_threads(options.dev_threads);
        let limits = Limits { reading_max, threads_max: reading_max + options.dev_spare_threads };
        let (dispatcher, dev) = (Arc::clone(&self.dispatcher), Arc::clone(&self.dev));
        let readers = Readers::start(dispatcher, dev, self.negotiated.max_write as usize, limits);
        self.readers = Some(readers.map_err(MountError::Thread)?);
        Ok(())
    }

    fn start_reader_beside_rings(&mut self) -> Result<(), MountError> {
        let buffers = DevBuffers::new(self.negotiated.max_write as usize).map_err(MountError::Thread)?;
        let (dispatcher, dev) = (Arc::clone(&self.dispatcher), Arc::clone(&self.dev));
        let serve = move || dev::serve_beside_rings(&dispatcher, dev.as_fd(), buffers);
        self.spawn("fuse-dev".to_owned(), serve).map_err(MountError::Thread)
    }

    /// Starts a thread per slot, and returns when every one is registered.
    fn start_ring_threads(&mut self, slots: Vec<RingSlot>) -> Result<(), RingStartError> {
        let (sender, registered) = mpsc::channel();
        let count = slots.iter().map(|slot| usize::from(slot.queue()) + 1).max().unwrap_or(0);
        let guard = self.guard.insert(Guard::start(count).map_err(RingStartError::Thread)?);
        let queues: Vec<_> = slots.iter().map(|slot| guard.queue(slot.queue())).collect();
        for (number, (slot, queue)) in slots.into_iter().zip(queues).enumerate() {
            let dispatcher = Arc::clone(&self.dispatcher);
            let sender = sender.clone();
            let dev = Arc::clone(&self.dev);
            let serve = move || slot.serve(&dispatcher, dev.as_fd(), queue, sender);
            self.spawn(format!("fuse-ring-{number}"), serve).map_err(RingStartError::Thread)?;
        }
        drop(sender);
        first_error(&registered).map_or(Ok(()), |error| Err(RingStartError::Register(error)))
    }

    fn spawn(&mut self, name: String, serve: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name).spawn(serve)?);
        Ok(())
    }
}

/// Waits until every sender has sent its result, and returns the first error.
fn first_error(results: &Receiver<io::Result<()>>) -> Option<io::Error> {
    results.iter().fold(None, |first, result| first.or(result.err()))
}

enum RingStartError {
    Thread(io::Error),
    Register(io::Error),
}

const NOT_OFFERED: &str = "the kernel does not offer it";

fn dev_threads(asked: usize) -> usize {
    if asked > 0 {
        return asked;
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    cpus.clamp(DEV_THREADS_MIN, DEV_THREADS_MAX)
}

/// The number of rings that a host needs.
#[derive(Debug, PartialEq, Eq)]
struct UringPlan {
    queues: u16,
    threads_per_queue: usize,
}

impl UringPlan {
    fn for_this_host(options: &SessionOptions) -> Result<Self, String> {
        let queues = ring::possible_cpus().map_err(|error| error.to_string())?;
        let memory_len = RingSlot::memory_len(options.init.max_write() as usize);
        let threads_per_queue =
            options.ring_threads_per_cpu.min(options.ring_memory_max / (memory_len * usize::from(queues).max(1)));
        if threads_per_queue == 0 {
            return Err(format!("one entry for each of {queues} CPUs exceeds the memory bound"));
        }
        Ok(Self { queues, threads_per_queue })
    }

    /// Makes the rings, thread by thread over all queues, and makes the kernel offer io_uring.
    fn make_rings(&self, payload_len: usize) -> Result<Vec<RingSlot>, String> {
        let queues = (0..self.threads_per_queue).flat_map(|_| 0..self.queues);
        let slots: io::Result<Vec<_>> = queues.map(|queue| RingSlot::new(queue, payload_len)).collect();
        let slots = slots.map_err(|error| format!("setting up a ring: {error}"))?;
        if ring::enable() { Ok(slots) } else { Err(NOT_OFFERED.to_owned()) }
    }
}

/// Returns the rings to serve with. An empty list means /dev/fuse, which is used if rings cannot be made, unless
/// io_uring was demanded.
fn make_rings(options: &SessionOptions) -> Result<Vec<RingSlot>, MountError> {
    if options.transport == Transport::Dev {
        return Ok(Vec::new());
    }
    let rings = UringPlan::for_this_host(options).and_then(|plan| plan.make_rings(options.init.max_write() as usize));
    match rings {
        Err(why) if options.transport == Transport::Uring => Err(MountError::Uring(why)),
        rings => Ok(rings.unwrap_or_default()),
    }
}

fn handshake(dev: &OwnedFd, config: &InitConfig, keeps_open: bool, uring: bool) -> Result<Negotiated, InitError> {
    dev::handshake(dev.as_fd(), |request, reply| {
        let (header, offer) = init::parse_init(request)?;
        let (out, agreed) = match init::negotiate(&offer, config, keeps_open, uring)? {
            InitStep::Agreed(out, negotiated) => (out, Some(negotiated)),
            InitStep::AskAgain(out) => (out, None),
        };
        let data = abi::bytes_of(&*out);
        reply.extend_from_slice(abi::bytes_of(&out_header(header.unique, Ok(data.len()))));
        reply.extend_from_slice(data);
        Ok(agreed)
    })
}

/// The mount, and whether it is still to be unmounted by this process.
#[derive(Debug)]
struct MountState {
    mount: Mount,
    gone: AtomicBool,
}

impl MountState {
    fn unmount(&self, lazily: bool) -> io::Result<Unmounted> {
        if self.gone.load(Ordering::Acquire) { Ok(Unmounted::NotThere) } else { self.mount.unmount(lazily) }
    }
}

/// Detaches the mount when a session ends early.
struct MountGuard(Arc<MountState>);

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = MountHandle(Arc::clone(&self.0)).detach();
    }
}

/// The mount of a session, for other threads: to end it, or to show that it takes no changes any more.
#[derive(Clone, Debug)]
pub struct MountHandle(Arc<MountState>);

impl MountHandle {
    /// Unmounts. The serving threads go on meanwhile, since the kernel writes back what it holds. `EBUSY` while files
    /// are open. Nothing happens if the mount is not on top at its mount point.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        self.0.unmount(false)
    }

    /// Makes the mount read-only for the kernel and its mount table. `EBUSY` while files are open for writing. Nothing
    /// happens if the mount is already gone.
    ///
    /// Not to be called by a serving thread: the kernel may be waiting for an answer.
    pub fn show_read_only(&self) -> io::Result<()> {
        if self.0.gone.load(Ordering::Acquire) { Ok(()) } else { self.0.mount.show_read_only() }
    }

    /// Returns the options of the mount that every file system knows, as a remount may have left them; `None` if it is
    /// not in the mount table. No file system is asked.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub fn flags(&self) -> io::Result<Option<MountFlags>> {
        self.0.mount.flags()
    }

    /// Takes the mount out of the tree at once; the session ends when the last open file is closed. Nothing happens if
    /// the mount is not on top at its mount point.
    pub fn detach(&self) -> io::Result<Unmounted> {
        self.0.unmount(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::types::{AttrReply, Entry, FOREVER, FileAttr, FileHandle, ReqCtx};

    /// An empty directory.
    struct Empty;

    impl FileSystem for Empty {
        fn getattr(&self, _: &ReqCtx, _: Option<FileHandle>) -> Result<AttrReply, Errno> {
            let attr = FileAttr { ino: 1, mode: libc::S_IFDIR | 0o755, nlink: 2, ..FileAttr::default() };
            Ok(AttrReply { attr, attr_ttl: FOREVER })
        }
        fn lookup(&self, _: &ReqCtx, _: &[u8]) -> Result<Entry, Errno> {
            Err(Errno::ENOENT)
        }
    }

    /// Returns rings with too few bytes of data: the kernel refuses to register such an entry.
    fn rings_the_kernel_refuses() -> Option<Vec<RingSlot>> {
        let queues = ring::possible_cpus().ok()?;
        let rings = (0..queues).map(|queue| RingSlot::new(queue, 1)).collect::<io::Result<_>>();
        ring::enable().then_some(())?;
        rings.ok()
    }

    #[test]
    fn a_refused_registration_falls_back_to_the_device() {
        let options = SessionOptions::default();
        let dir = tempfile::tempdir().expect("a directory");
        let Some(rings) = rings_the_kernel_refuses() else {
            return eprintln!("SKIPPED: no FUSE over io_uring here");
        };
        let session = match Session::mount_with_rings(Empty, dir.path(), &options, rings) {
            Ok(session) => session,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        assert_eq!(session.negotiated().transport, Transport::Dev);
        assert!(session.negotiated().flags.contains(InitFlags::OVER_IO_URING), "it was agreed on before");
        for number in 0..50 {
            let missing = std::fs::metadata(dir.path().join(number.to_string()));
            assert_eq!(missing.expect_err("an empty directory").raw_os_error(), Some(libc::ENOENT));
        }
        session.mount_handle().unmount().expect("unmount");
        session.serve().expect("serve");
    }

    #[test]
    fn a_demanded_io_uring_that_fails_leaves_no_mount() {
        let options = SessionOptions { transport: Transport::Uring, ..SessionOptions::default() };
        let dir = tempfile::tempdir().expect("a directory");
        let Some(rings) = rings_the_kernel_refuses() else {
            return eprintln!("SKIPPED: no FUSE over io_uring here");
        };
        assert!(Session::mount_with_rings(Empty, dir.path(), &options, rings).is_err());
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        assert!(!table.contains(dir.path().to_str().expect("a plain path")));
    }

    #[test]
    fn threads_per_cpu_shrink_to_the_memory_bound() {
        let mut options = SessionOptions::default();
        let plan = |options: &SessionOptions| UringPlan::for_this_host(options).map(|plan| plan.threads_per_queue);
        let queues = usize::from(ring::possible_cpus().expect("a list of CPUs"));
        let entry_len = RingSlot::memory_len(options.init.max_write() as usize);
        options.ring_memory_max = queues * entry_len * 3 + entry_len / 2;
        assert_eq!(plan(&options), Ok(3));
        options.ring_memory_max = queues * entry_len - 1;
        assert!(plan(&options).is_err());
    }
}
