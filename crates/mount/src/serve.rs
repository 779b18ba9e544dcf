//! A live mount from its first request to its last: mount, serve, unmount on signals, close.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use moafs_disk::SharedDisk;
use moafs_fuse::{MountError, MountFlags, MountHandle, MountKind, Negotiated, Session, Transport, Unmounted};
use moafs_vfs::api::AtimePolicy;
use moafs_vfs::format::Shape;
use moafs_vfs::{Error, Format, Vfs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::attributes::{AttributesThread, Notices};
use crate::control::STATS_NAME;
use crate::failure;
use crate::follower::Follower;
use crate::front::{Front, Opens};
use crate::layout::LayoutMaker;
use crate::log::Log;
use crate::medium::Medium;
use crate::nodes::Nodes;
use crate::options::Settings;
use crate::pressure::PressureWatch;
use crate::source::{self, Face, Source};
use crate::stats::{self, About, AboutSession, MoreCounters};
use crate::swap::KernelSwap;
use crate::ticking::Ticking;

/// A volume to be mounted, with its mount point and its settings.
pub struct Mounting<F: Format> {
    /// The open volume.
    pub vfs: Vfs<F>,
    /// The disk that holds the volume, for the kernel's swap.
    pub volume_disk: SharedDisk,
    /// The image or device of the volume.
    pub source: Source,
    /// First byte of the volume on it.
    pub first_byte: u64,
    /// The result of [`Source::claim`]. Kept until the volume is closed, unless the kernel claims the device itself.
    pub claim: Option<File>,
    /// The mount point.
    pub target: PathBuf,
    /// The mount's settings.
    pub settings: Settings,
    /// Counters of the disk.
    pub disk: MoreCounters,
    /// Counters of the format's engine, if it has some.
    pub engine: Option<MoreCounters>,
    /// Answers questions about the layout.
    pub layout: LayoutMaker,
}

/// The reason for which a mount failed or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The mount or the handshake failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The mount could not be served to its end.
    #[error("serving the mount: {0}")]
    Serve(#[source] io::Error),
    /// The signal handlers could not be installed.
    #[error("waiting for signals: {0}")]
    Signals(#[source] io::Error),
    /// Data could not be written when the volume was closed.
    #[error("closing the volume: {0}")]
    Close(Error),
}

/// Mounts, calls `ready` once the mount can be used, serves until it is unmounted (by umount, or because SIGTERM,
/// SIGINT or SIGHUP arrived), and closes the volume. The volume is closed on every way out.
///
/// # Errors
/// Fails if the mount failed, or the volume could not be closed cleanly.
pub fn serve<F: Format>(mut mounting: Mounting<F>, ready: impl FnOnce()) -> Result<(), ServeError> {
    share_arenas();
    let log = Arc::new(Log::new(mounting.source.path().display().to_string()));
    let vfs = mounting.vfs.clone();
    tell_state(vfs.shape(), mounting.settings.volume.read_only, &log);
    let mut claim = mounting.claim.take();
    let (session, watches) = match start(mounting, &mut claim, &log) {
        Ok(started) => started,
        Err(error) => {
            close(vfs)?;
            return Err(error);
        }
    };
    let front = Arc::clone(session.fs());
    let pressure = watch_pressure(&vfs, &log);
    ready();
    let served = session.serve();
    drop((pressure, watches));
    let closed = front.closed().map_or_else(|| close(vfs), |outcome| outcome.clone().map_err(ServeError::Close));
    // Before the lock of the device, which goes with the front: others wait for that one.
    drop(claim);
    closed?;
    served.map_err(ServeError::Serve)
}

/// Logs why the volume cannot be changed, and its other warnings.
fn tell_state(shape: &Shape, read_only: bool, log: &Log) {
    let reason = shape.read_only.iter().filter(|_| !read_only).map(|reason| format!("mounted read-only: {reason}"));
    reason.chain(shape.notes.iter().cloned()).for_each(|text| log.say(&text));
}

/// Limits the allocator to one arena per processor. Memory that a thread frees goes back to the arena it came from;
/// with the default of eight per processor, many small short-lived objects fragment all of them.
#[cfg(target_env = "gnu")]
fn share_arenas() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: takes numbers only.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, libc::c_int::try_from(processors).unwrap_or(libc::c_int::MAX)) };
}

#[cfg(not(target_env = "gnu"))]
fn share_arenas() {}

/// Mounts and begins to wait for signals. They are caught from before the mount on: an early signal must not end the
/// daemon and leave a mount without one.
fn start<F: Format>(
    mounting: Mounting<F>,
    claim: &mut Option<File>,
    log: &Arc<Log>,
) -> Result<(Session<Front<F>>, Watches), ServeError> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Signals)?;
    let leaving = (mounting.vfs.clone(), mounting.target.clone());
    let disk = Arc::clone(&mounting.volume_disk);
    let medium = Medium::of(mounting.source.path());
    let (vfs, target) = leaving.clone();
    let swap = Arc::new(KernelSwap::new(vfs, disk, medium, target, Arc::clone(log)));
    let (vfs, target) = leaving;
    let notices = Arc::new(Notices::default());
    let noting = Arc::clone(&notices);
    // From the first request on.
    vfs.watch_unseen(move |unseen| noting.note_unseen(unseen));
    let session = mount(mounting, claim, Arc::clone(&swap), Arc::clone(&notices), log)?;
    let nodes = Nodes::new(vfs.shape().root);
    let attributes = AttributesThread::start(notices, session.notifier(), nodes, Arc::clone(log));
    let attributes = attributes.inspect_err(|error| {
        log.say(&format!("numbers of blocks may be shown as they were before data were placed: {error}"));
    });
    let failure = failure::watch(&vfs, &swap, session.mount_handle(), log).inspect_err(|error| {
        log.say(&format!("a failure of the volume will not be shown in the mount table: {error}"));
    });
    let follower = Follower::follow(vfs.clone(), session.mount_handle(), Arc::clone(log));
    let follower = follower.inspect_err(|error| {
        log.say(&format!("options will not follow a remount: {error}"));
    });
    let leaver = Leaver { mount_handle: session.mount_handle(), vfs, swap, target, log: Arc::clone(log) };
    let signals = SignalWatch::start(signals, leaver)?;
    let watches =
        Watches { _signals: signals, _failure: failure.ok(), _attributes: attributes.ok(), _follower: follower.ok() };
    Ok((session, watches))
}

fn close<F: Format>(vfs: Vfs<F>) -> Result<(), ServeError> {
    vfs.close().map_err(ServeError::Close)
}

fn mount<F: Format>(
    mounting: Mounting<F>,
    claim: &mut Option<File>,
    swap: Arc<KernelSwap<F>>,
    notices: Arc<Notices>,
    log: &Arc<Log>,
) -> Result<Session<Front<F>>, ServeError> {
    let Mounting { vfs, source, first_byte, target, mut settings, disk, engine, layout, .. } = mounting;
    // The kernel displays the mount as read-only, and refuses changes by itself.
    let read_only = settings.volume.read_only || vfs.shape().read_only.is_some();
    settings.session.mount.flags.set(MountFlags::RDONLY, read_only);
    let face = Face::choose(&source, settings.plain, read_only);
    name_source(&mut settings, &source, &face, vfs.shape().block_size);
    let about_session = Arc::new(OnceLock::new());
    let about = About {
        source: source.path().to_owned(),
        first_byte,
        target: target.clone(),
        face: face.describe(),
        options: settings.given,
        session: Arc::clone(&about_session),
        disk,
        engine,
        log: Arc::clone(log),
    };
    let files = vec![(STATS_NAME, stats::text(vfs.clone(), Arc::clone(&swap), about))];
    let opens = match (settings.volume.atime, settings.check_opens) {
        (AtimePolicy::Strict, _) => Opens::Fresh,
        (_, true) => Opens::Checked,
        (_, false) => Opens::Unseen,
    };
    let front = Front::new(vfs, files, swap, Arc::clone(log)).with_opens(opens);
    let front = front.with_identity(settings.identity).with_notices(notices).with_layout(layout);
    if face.device().is_some() {
        // The kernel itself claims the device from now on.
        *claim = None;
    }
    let session = Session::mount(front, &target, &settings.session)?;
    let no_sync = no_sync(session.negotiated(), &face);
    if let Some(words) = &no_sync {
        log.say(words);
    }
    if no_sync.is_some() || face.device().is_none() {
        session.fs().sync_all_by_root();
    }
    // The mount holds the loop device from here on, which detaches itself when the mount is gone.
    drop(face);
    let transport = if session.negotiated().transport == Transport::Uring { "uring" } else { "dev" };
    // This is the only place that sets it.
    let _ = about_session.set(AboutSession { transport, no_sync, times: session.op_times() });
    Ok(session)
}

/// Returns words about a kernel that does not pass `sync` on though the mount is one of a block device.
fn no_sync(negotiated: &Negotiated, face: &Face) -> Option<String> {
    let keeps = face.device().is_some() && !negotiated.passes_syncfs();
    keeps.then(|| {
        format!(
            "this kernel (FUSE 7.{}) may keep `sync` and `syncfs` to itself, as those before Linux 6.18 do; fsync of \
             the mount's root directory makes everything durable",
            negotiated.kernel_minor
        )
    })
}

/// Sets the source that the mount table shows.
fn name_source(settings: &mut Settings, source: &Source, face: &Face, block_size: u32) {
    let mount = &mut settings.session.mount;
    let named = settings.given.iter().any(|option| option.starts_with("fsname="));
    match face.device() {
        Some(device) => {
            mount.fsname = device.display().to_string();
            // The kernel takes no smaller one than the device's sectors.
            let block_size = block_size.max(source::sector_bytes(device));
            mount.kind = MountKind::BlockDevice { block_size };
        }
        None if !named => mount.fsname = source.path().display().to_string(),
        None => {}
    }
}

fn watch_pressure<F: Format>(vfs: &Vfs<F>, log: &Log) -> Option<PressureWatch> {
    let (counting, shrinking) = (vfs.clone(), vfs.clone());
    PressureWatch::start(move || counting.counters().cached_bytes, move |bytes| shrinking.shrink(bytes), log)
}

/// The threads that watch over a live mount until this is dropped.
struct Watches {
    _signals: SignalWatch,
    _failure: Option<Ticking>,
    _attributes: Option<AttributesThread>,
    _follower: Option<Follower>,
}

/// Unmounts when a signal asks for it, in a thread that serves no requests: unmounting writes back what the kernel
/// holds, so requests must be served meanwhile.
struct SignalWatch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    fn start<F: Format>(mut signals: Signals, leaver: Leaver<F>) -> Result<SignalWatch, ServeError> {
        let handle = signals.handle();
        let wait = move || {
            for _ in signals.forever() {
                leaver.leave();
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(ServeError::Signals)?;
        Ok(SignalWatch { handle, thread: Some(thread) })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The parts that the daemon needs to unmount its own volume.
struct Leaver<F: Format> {
    mount_handle: MountHandle,
    vfs: Vfs<F>,
    swap: Arc<KernelSwap<F>>,
    target: PathBuf,
    log: Arc<Log>,
}

impl<F: Format> Leaver<F> {
    /// Unmounts. While files are open the mount leaves the tree at once and ends with the last of them; one that is not
    /// on top at its mount point stays. Everything written so far is made durable now, in case the end never comes.
    /// Refuses while the kernel swaps to the volume, which then holds memory of other processes.
    fn leave(&self) {
        if self.swap.is_on() {
            let target = self.target.display();
            return self.log.say(&format!("not unmounted: its swap is on; `moafs swap off {target}` first"));
        }
        match self.mount_handle.unmount() {
            // A copy of it (`mount --bind`) may be left.
            Ok(Unmounted::Now) => {}
            Ok(Unmounted::NotThere) => self.log.say(&format!(
                "told to end, but the mount is not on top at {}: serving until the last place and the last file of it \
                 are gone",
                self.target.display()
            )),
            Err(error) => self.leave_lazily(&error),
        }
        match self.vfs.sync() {
            // Refused: the volume has been closed meanwhile, with everything written.
            Ok(()) | Err(Error::Refused(_)) => {}
            Err(error) => self.log.failure(&format!("writing everything: {error}")),
        }
    }

    fn leave_lazily(&self, error: &io::Error) {
        if error.raw_os_error() == Some(libc::EBUSY) {
            self.log.say("files are still open: unmounted lazily, serving until the last one is closed");
        } else {
            self.log.say(&format!("unmounting: {error}; trying lazily"));
        }
        if let Err(error) = self.mount_handle.detach() {
            self.log.say(&format!("unmounting lazily: {error}"));
        }
    }
}

/// Checks that `target` is an accessible directory, and returns its absolute path.
///
/// # Errors
/// The error of resolving it, or ENOTDIR.
pub fn check_target(target: &Path) -> io::Result<PathBuf> {
    let absolute = target.canonicalize()?;
    if absolute.metadata()?.is_dir() { Ok(absolute) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
}
