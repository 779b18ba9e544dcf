//! A live disk from its first request to its last.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use moafs_fuse::{InitConfig, MountError, MountHandle, MountOptions, Session, SessionOptions, Transport};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::drive::{Model, ModelError};
use crate::front::Front;
use crate::host::{Host, Pace};
use crate::store::Store;
use crate::trace::TraceFile;
use crate::{About, SUBTYPE, TRANSFER_BYTES_MAX};

/// Requests that can wait at once; more wait in the kernel, in the order they came.
const THREADS: usize = 16;
/// Asynchronous requests that the kernel lets out before it holds others back.
const BACKGROUND_MAX: u16 = 128;

/// A disk to serve, and the conditions of serving it.
#[derive(Debug, Clone)]
pub struct SimDisk {
    /// Model of the drive.
    pub model: Model,
    /// Capacity in bytes; `None`: that of the model.
    pub bytes: Option<u64>,
    /// Relation between modelled time and wall time.
    pub pace: Pace,
    /// Image file that keeps the bytes; `None`: they are in memory and go with the disk.
    pub image: Option<PathBuf>,
    /// File for the list of commands; `None`: no list.
    pub trace: Option<PathBuf>,
}

/// An error that prevented the disk from being served, or that ended it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The drive cannot be modelled.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The size is larger than the model's capacity, zero, or not a multiple of 4096 bytes.
    #[error(
        "the size of the disk must be a multiple of 4096 bytes, and at most the {max} bytes that {model} has; it is {bytes}"
    )]
    Size {
        /// Name of the drive's model.
        model: String,
        /// Capacity of the model in bytes.
        max: u64,
        /// Size that was asked for, in bytes.
        bytes: u64,
    },
    /// The bytes cannot be kept.
    #[error("making room for the disk's bytes: {0}")]
    Store(#[source] io::Error),
    /// The trace cannot be written.
    #[error("making the trace {}: {error}", path.display())]
    Trace {
        /// Path of the trace file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// A thread or the signal handlers could not be started.
    #[error("starting to serve: {0}")]
    Start(#[source] io::Error),
    /// The kernel refused the mount, or the handshake failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Serving the mount ended with an error.
    #[error("serving the disk: {0}")]
    Serve(#[source] io::Error),
}

impl SimDisk {
    /// Returns the capacity in bytes, after checking it.
    fn capacity(&self) -> Result<u64, ServeError> {
        let max = self.model.bytes();
        let bytes = self.bytes.unwrap_or(max / 4096 * 4096);
        let model = || self.model.name().to_owned();
        if bytes == 0 || bytes > max || !bytes.is_multiple_of(4096) {
            return Err(ServeError::Size { model: model(), max, bytes });
        }
        Ok(bytes)
    }

    fn front(&self) -> Result<Front, ServeError> {
        let bytes = self.capacity()?;
        let store = Store::open(self.image.as_deref(), bytes).map_err(ServeError::Store)?;
        let about = About {
            model: self.model.name().to_owned(),
            set: self.model.set_parameters().to_vec(),
            bytes,
            pace: match self.pace {
                Pace::Unpaced => None,
                Pace::Paced(factor) => Some(factor),
            },
        };
        let trace = self.trace.as_deref().map(open_trace).transpose()?;
        let host = Host::start(self.model.drive()?, self.model.transfer_bytes_max(), self.pace, trace)
            .map_err(ServeError::Start)?;
        Ok(Front::new(host, store, about))
    }
}

fn open_trace(path: &Path) -> Result<TraceFile, ServeError> {
    TraceFile::create(path).map_err(|error| ServeError::Trace { path: path.to_owned(), error })
}

/// Mounts the directory of a disk on `target`, calls `ready` once it can be used, and serves it
/// until it is unmounted, by `moafs umount` or because SIGTERM, SIGINT or SIGHUP arrived.
///
/// # Errors
/// Fails if there was no mount, or it could not be served to its end.
pub fn serve(disk: &SimDisk, target: &Path, ready: impl FnOnce()) -> Result<(), ServeError> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Start)?;
    let options = session_options(disk.model.name());
    let session = Session::mount(disk.front()?, target, &options)?;
    let watch = SignalWatch::start(signals, session.mount_handle()).map_err(ServeError::Start)?;
    ready();
    let served = session.serve();
    drop(watch);
    served.map_err(ServeError::Serve)
}

fn session_options(model: &str) -> SessionOptions {
    let mount = MountOptions {
        fsname: format!("simdisk-{model}"),
        subtype: Some(SUBTYPE.to_owned()),
        ..MountOptions::default()
    };
    let init = InitConfig {
        max_write: TRANSFER_BYTES_MAX as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX,
        posix_acl: false,
        ..InitConfig::default()
    };
    // Threads block for as long as the drive takes, and the kernel's order matters: one queue for all of them.
    SessionOptions {
        mount,
        init,
        transport: Transport::Dev,
        dev_threads: THREADS,
        dev_spare_threads: 0,
        ..SessionOptions::default()
    }
}

/// A thread that unmounts when a signal asks for it.
struct SignalWatch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalWatch {
    fn start(mut signals: Signals, mount_handle: MountHandle) -> io::Result<SignalWatch> {
        let handle = signals.handle();
        let wait = move || {
            for _ in signals.forever() {
                leave(&mount_handle);
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        Ok(SignalWatch { handle, thread: Some(thread) })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Unmounts. While a loop device has the disk open, the directory leaves the tree at once, and the
/// disk ends with that device.
fn leave(mount_handle: &MountHandle) {
    let Err(error) = mount_handle.unmount() else { return };
    eprintln!("moafs simdisk: unmounting: {error}; serving until the last user of the disk is gone");
    if let Err(error) = mount_handle.detach() {
        eprintln!("moafs simdisk: unmounting lazily: {error}");
    }
}
