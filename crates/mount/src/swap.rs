//! `.moafs/swap` and `.moafs/swapfile`: the kernel swaps to the volume.
//!
//! Root or the mount's owner writes one JSON object to `.moafs/swap` and reads the state there. While the swap is on,
//! `.moafs/swapfile` is a file of its size, for a loop device to be attached to; a page of it is a page of
//! [`moafs_swap::Swap`].
//!
//! **The file is a mount of its own**, with a connection to the kernel and threads of its own, on top of a name of the
//! volume's mount. That connection carries no other requests, so a page-out never waits behind a request for a file
//! that itself waits: for memory, for room in the cache, for a lock. And the kernel refuses every unmount of the volume
//! while it swaps to it.
//!
//! A swap lives in one thread ([`KernelSwap::run`]), which makes it, serves it, and undoes everything when the mount of
//! the file is gone. Its steps in order: rights, room, memory (`memory`), the mount, the watchdog and the background
//! work (`watch`).
//!
//! | module | what it holds |
//! |---|---|
//! | `file` | the file: bytes to pages |
//! | `readahead_cache` | pages that came in beside others |
//! | [`memory`] | a daemon that needs no memory to free memory |
//! | `watch` | requests counted; those that are stuck are told |
//! | [`device`] | loop device, swap header, swapon and swapoff |

pub mod device;
mod file;
pub mod memory;
mod readahead_cache;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use moafs_disk::SharedDisk;
use moafs_fuse::{Errno, InitConfig, MountHandle, MountOptions, Session, SessionOptions, Transport};
use moafs_runtime::Live;
use moafs_swap::{Home, PAGE_BYTES, Placement, Swap, SwapError, SwapOptions};
use moafs_vfs::{Error, Format, Vfs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::Audience;
use crate::control_path;
use crate::log::Log;
use crate::medium::Medium;
use crate::swap::file::{REQUEST_PAGES_MAX, SwapFile};
use crate::swap::memory::Locked;
use crate::swap::watch::Watch;
use crate::ticking::Ticking;

/// Name of the control file.
pub const SWAP_NAME: &str = "swap";
/// Type of the file's mount, behind `fuse.`: not that of a volume.
const SUBTYPE: &str = "moafs-swap";
/// The same type as the mount table shows it.
pub(crate) const FSTYPE: &str = "fuse.moafs-swap";

/// Most pages that a request may read ahead: the rest of one request of the kernel, and the pages that the window adds
/// to a short one.
const NEIGHBOURS_MAX: u32 = REQUEST_PAGES_MAX as u32 - 1;
const _: () = assert!(readahead_cache::WINDOW_MAX <= NEIGHBOURS_MAX);

/// Longest command in bytes.
const COMMAND_BYTES_MAX: usize = 4096;
/// Threads that serve the swap: page-ins of several processes at once, and page-outs beside them.
const THREADS: usize = 4;
/// Pause between two steps of background work, and after one that found no work.
const TEND_PAUSE: Duration = Duration::from_millis(1);
const TEND_IDLE: Duration = Duration::from_millis(200);

/// A command, as written to `.moafs/swap`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SwapCommand {
    /// Makes a swap, unless there is one (EBUSY). The control file shows the result.
    On(SwapWish),
    /// Ends the swap. EBUSY as long as its file is open, as it is for the loop device of an active swap.
    Off,
}

/// Size and placement of the swap to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapWish {
    /// Its size, whole pages of 4096 bytes.
    pub bytes: u64,
    /// Placement of pages.
    #[serde(default)]
    pub place: SwapPlace,
}

/// Placement of pages on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapPlace {
    /// Into areas, unless the device is known to have no head.
    #[default]
    Auto,
    /// Into swap areas next to the disk head.
    Areas,
    /// To the lowest free addresses of the volume, as to a swap partition at the disk's start.
    Start,
}

impl SwapPlace {
    /// Returns the placement that this choice means on `medium`. Without a head areas save nothing, and writing to more
    /// places by turns makes flash copy and erase more: slower, on F2FS and on ext2 (`saf-log-sd`, docs/lab.md).
    pub fn on(self, medium: Medium) -> Placement {
        match (self, medium) {
            (SwapPlace::Areas, _) | (SwapPlace::Auto, Medium::Head | Medium::Unknown) => Placement::Areas,
            (SwapPlace::Start, _) | (SwapPlace::Auto, Medium::NoHead) => Placement::Traditional,
        }
    }
}

/// State of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapState {
    /// There is no swap.
    #[default]
    Off,
    /// The swap is being made.
    Starting,
    /// The swap's file can be used.
    On,
    /// The swap is being ended.
    Stopping,
}

/// The contents of `.moafs/swap`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SwapStatus {
    /// State of the swap.
    pub state: SwapState,
    /// The error of the last command. Null for users other than root and the owner of the mount, as is `file`: both
    /// name paths of the host.
    pub error: Option<String>,
    /// Size in bytes; 0 without a swap.
    pub bytes: u64,
    /// Path of the file to attach a loop device to, while it is on.
    pub file: Option<PathBuf>,
    /// The placement that was asked for, while it is on; `swap` shows the pages themselves.
    #[serde(default)]
    pub place: Option<SwapPlace>,
    /// Protections against running out of memory that the daemon lacks, while it is on.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Pages and areas, as [`moafs_swap::Status`] has them, while it is on.
    pub swap: Option<Value>,
    /// Requests of the kernel, while it is on.
    pub requests: Option<Value>,
}

impl SwapStatus {
    /// Returns what an audience may see of it.
    fn shown_to(self, audience: Audience) -> SwapStatus {
        match audience {
            Audience::Owner => self,
            Audience::Others => SwapStatus { error: None, file: None, ..self },
        }
    }
}

/// The swap of a mount.
pub struct KernelSwap<F: Format> {
    vfs: Vfs<F>,
    disk: SharedDisk,
    medium: Medium,
    /// The mount point of the volume.
    target: PathBuf,
    log: Arc<Log>,
    state: Mutex<State>,
    /// True while `.moafs/swapfile` is a name.
    named: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    state: SwapState,
    error: Option<String>,
    live: Option<Running>,
    thread: Option<JoinHandle<()>>,
}

/// The parts of a swap that is on.
#[derive(Clone)]
struct Running {
    swap: Arc<Swap>,
    place: SwapPlace,
    watch: Arc<Watch>,
    mount_handle: MountHandle,
    warnings: Arc<[String]>,
}

impl<F: Format> KernelSwap<F> {
    /// Creates the state, without a swap, of the volume mounted at `target`, which lies on `disk`, a disk of kind
    /// `medium`.
    pub fn new(vfs: Vfs<F>, disk: SharedDisk, medium: Medium, target: PathBuf, log: Arc<Log>) -> KernelSwap<F> {
        KernelSwap { vfs, disk, medium, target, log, state: Mutex::default(), named: Arc::default() }
    }

    /// Returns the flag that is true while `.moafs/swapfile` is a name.
    pub(crate) fn named(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.named)
    }

    /// Returns true if there is a swap or one is being made.
    pub(crate) fn is_on(&self) -> bool {
        self.state.lock().state != SwapState::Off
    }

    /// Returns the path that its file is mounted on.
    fn file(&self) -> PathBuf {
        control_path::swapfile(&self.target)
    }

    /// Returns the status.
    pub(crate) fn status(&self) -> SwapStatus {
        let (state, error, live) = {
            let state = self.state.lock();
            (state.state, state.error.clone(), state.live.clone())
        };
        let Some(live) = live else { return SwapStatus { state, error, ..SwapStatus::default() } };
        SwapStatus {
            state,
            error,
            bytes: u64::from(live.swap.pages()) * PAGE_BYTES as u64,
            file: Some(self.file()),
            place: Some(live.place),
            warnings: live.warnings.to_vec(),
            swap: serde_json::from_str(&live.swap.status().json()).ok(),
            requests: serde_json::to_value(live.watch.seen()).ok(),
        }
    }

    /// Returns the text of the control file.
    pub(crate) fn text(&self, audience: Audience) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(&self.status().shown_to(audience)).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Starts a command. Another thread carries it out, because it makes requests to this very mount.
    pub(crate) fn command(self: &Arc<Self>, text: &[u8]) -> Result<(), Errno> {
        if text.len() > COMMAND_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        match serde_json::from_slice(text).map_err(|_| Errno::EINVAL)? {
            SwapCommand::On(wish) => self.begin(wish),
            SwapCommand::Off => self.end(),
        }
    }

    fn begin(self: &Arc<Self>, wish: SwapWish) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.state != SwapState::Off {
            return Err(Errno::EBUSY);
        }
        let kernel = Arc::clone(self);
        let thread = std::thread::Builder::new().name("swap".to_owned()).spawn(move || kernel.run(&wish));
        // The previous thread, if any, has ended.
        state.thread = Some(thread.map_err(errno)?);
        (state.state, state.error) = (SwapState::Starting, None);
        Ok(())
    }

    fn end(self: &Arc<Self>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (SwapState::On, Some(live)) = (state.state, &state.live) else { return Err(Errno::ENOENT) };
        let (kernel, mount_handle) = (Arc::clone(self), live.mount_handle.clone());
        let unmount = move || {
            let Err(error) = mount_handle.unmount() else { return };
            let mut state = kernel.state.lock();
            if state.state == SwapState::Stopping {
                (state.state, state.error) = (SwapState::On, Some(format!("the swap's file is in use: {error}")));
            }
        };
        std::thread::Builder::new().name("swap-end".to_owned()).spawn(unmount).map_err(errno)?;
        (state.state, state.error) = (SwapState::Stopping, None);
        Ok(())
    }

    /// Ends the swap, before the volume closes. If the volume was unmounted lazily while the swap is in use, waits
    /// until the kernel does not swap to it any more.
    pub(crate) fn close(&self) {
        let (thread, live) = {
            let mut state = self.state.lock();
            (state.thread.take(), state.live.clone())
        };
        if let Some(live) = live {
            self.log.say("unmounted while the swap is on: the volume stays open until swapoff(8) of its loop device");
            // An error means that it is busy or gone already: both end below.
            let _ = live.mount_handle.detach();
        }
        if let Some(thread) = thread {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }

    /// Runs a swap from its start to its end, and records the error.
    fn run(&self, wish: &SwapWish) {
        let error = self.live(wish).err();
        if let Some(error) = &error {
            self.log.say(&format!("swap: {error}"));
        }
        self.named.store(false, Ordering::Release);
        let mut state = self.state.lock();
        (state.state, state.error, state.live) = (SwapState::Off, error, None);
    }

    /// Makes a swap and serves it until its file is unmounted. Errors are messages.
    fn live(&self, wish: &SwapWish) -> Result<(), String> {
        check_rights()?;
        let swap = Arc::new(self.open(wish)?);
        let locked = Locked::lock().map_err(|error| {
            format!(
                "locking the daemon in memory: {error} (CAP_IPC_LOCK, or a higher limit on locked memory, is needed)"
            )
        })?;
        let watch = Arc::new(Watch::new());
        let _watchdog = watch::watchdog(Arc::clone(&watch), Arc::clone(&self.log)).map_err(thread_error)?;
        let _tender = background(Arc::clone(&swap), Arc::clone(&self.log)).map_err(thread_error)?;
        self.named.store(true, Ordering::Release);
        control_path::check_cover(&self.target).map_err(|error| format!("a place for the swap's file: {error}"))?;
        let file = SwapFile::new(Arc::clone(&swap), swap.pages(), THREADS, Arc::clone(&watch), Arc::clone(&self.log));
        let session = Session::mount(file, &self.file(), &session_options())
            .map_err(|error| format!("mounting the swap's file: {error}"))?;
        {
            let mut state = self.state.lock();
            let warnings = locked.warnings().into();
            state.live =
                Some(Running { swap, place: wish.place, watch, mount_handle: session.mount_handle(), warnings });
            state.state = SwapState::On;
        }
        let served = session.serve().map_err(|error| format!("serving the swap's file: {error}"));
        // The areas are freed with the last reference to the swap, so no new one may be taken.
        self.state.lock().live = None;
        served
    }

    fn open(&self, wish: &SwapWish) -> Result<Swap, String> {
        let shape = self.vfs.shape();
        self.vfs.check_writable().map_err(|error| format!("pages cannot go to this volume: {error}"))?;
        if shape.block_size as usize > PAGE_BYTES {
            return Err(format!("the volume's blocks of {} bytes are larger than pages", shape.block_size));
        }
        let pages = u32::try_from(wish.bytes / PAGE_BYTES as u64).ok().filter(|pages| *pages > 0);
        let pages = pages.ok_or_else(|| format!("a swap cannot have {} bytes", wish.bytes))?;
        let room = self.vfs.swap_space(wish.bytes / u64::from(shape.block_size));
        let Some(room) = room.map_err(|error| format!("making way for the swap: {error}"))? else {
            return Err(format!("{} volumes have no room for swap areas", shape.format));
        };
        let disk = Arc::clone(&self.disk);
        let home = Home { disk, block_bytes: shape.block_size, room, head: self.vfs.last_access() };
        let placement = wish.place.on(self.medium);
        let options = SwapOptions { placement, neighbours: NEIGHBOURS_MAX, ..SwapOptions::default() };
        Swap::open(Some(home), None, pages, Live::new(), options).map_err(|error| self.no_room(wish.bytes, &error))
    }

    /// Returns the message that there is no room, with the room that there is.
    fn no_room(&self, wanted: u64, error: &SwapError) -> String {
        let SwapError::Volume { source: Error::Posix(libc::ENOSPC), .. } = error else { return error.to_string() };
        let space = self.vfs.stat_fs();
        let free = space.available * u64::from(space.block_size);
        format!(
            "the volume has no room for a swap of {} MiB: {} MiB are free; make it smaller (--size) or remove files",
            wanted >> 20,
            free >> 20
        )
    }
}

/// Checks that the daemon has the rights to serve a swap.
fn check_rights() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the mount's daemon does not run as root: mount the volume as root to swap to it".to_owned());
    }
    Ok(())
}

/// Does the swap's background work.
fn background(swap: Arc<Swap>, log: Arc<Log>) -> std::io::Result<Ticking> {
    Ticking::start("swap-background", move || match swap.run_background_step() {
        Ok(true) => TEND_PAUSE,
        Ok(false) => TEND_IDLE,
        Err(error) => {
            log.failure(&format!("swap: {error}"));
            TEND_IDLE
        }
    })
}

/// Returns the options of the simplest connection: /dev/fuse, a few threads, nothing cached.
fn session_options() -> SessionOptions {
    let mount = MountOptions {
        fsname: "swapfile".to_owned(),
        subtype: Some(SUBTYPE.to_owned()),
        read_ahead_kb: 0,
        ..MountOptions::default()
    };
    let init =
        InitConfig { max_write: (REQUEST_PAGES_MAX * PAGE_BYTES) as u32, posix_acl: false, ..InitConfig::default() };
    // No spare threads: starting one takes memory, and the kernel may wait for this mount to get some.
    SessionOptions {
        mount,
        init,
        transport: Transport::Dev,
        dev_threads: THREADS,
        dev_spare_threads: 0,
        ..SessionOptions::default()
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::new(error.raw_os_error().unwrap_or(libc::EAGAIN))
}

fn thread_error(error: std::io::Error) -> String {
    format!("starting a thread: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_host_are_shown_to_root_and_the_owner_only() {
        let status = SwapStatus {
            error: Some("mounting on /srv/private/.moafs/swapfile: busy".to_owned()),
            file: Some("/srv/private/.moafs/swapfile".into()),
            ..SwapStatus::default()
        };
        let shown = status.clone().shown_to(Audience::Owner);
        assert_eq!((shown.error, shown.file), (status.error.clone(), status.file.clone()));
        let shown = status.shown_to(Audience::Others);
        assert_eq!((shown.error, shown.file), (None, None));
    }

    #[test]
    fn areas_are_left_off_where_no_head_moves_unless_asked_for() {
        let on = |place: SwapPlace| [Medium::Head, Medium::Unknown, Medium::NoHead].map(|medium| place.on(medium));
        assert_eq!(on(SwapPlace::Auto), [Placement::Areas, Placement::Areas, Placement::Traditional]);
        assert_eq!(on(SwapPlace::Areas), [Placement::Areas; 3]);
        assert_eq!(on(SwapPlace::Start), [Placement::Traditional; 3]);
        let SwapCommand::On(wish) = serde_json::from_str(r#"{"on": {"bytes": 4096}}"#).unwrap() else { panic!() };
        assert_eq!(wish.place, SwapPlace::Auto);
    }
}
