//! A mount being served.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::MountError;
use crate::fs::FileSystem;
use crate::init::Negotiated;
use crate::notify::Notifier;
use crate::options::SessionOptions;

/// A mount and the threads that serve it. The mount is usable from the moment [`Session::mount`] returns. Dropping a
/// session that was not served to its end detaches the mount.
pub struct Session<F: FileSystem> {
    fs: Arc<F>,
    negotiated: Negotiated,
    unmounter: Unmounter,
}

impl<F: FileSystem> Session<F> {
    /// Mounts, agrees with the kernel, and starts the serving threads. A daemon that forks into the background does
    /// so *before*: threads do not survive a fork.
    pub fn mount(fs: F, target: &Path, options: &SessionOptions) -> Result<Self, MountError> {
        let _ = (fs, target, options);
        Err(MountError::Uring("not built".to_owned()))
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    /// A handle to end the session from another thread, as one that waits for signals.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// A handle to tell the kernel that its caches are out of date.
    pub fn notifier(&self) -> Notifier {
        Notifier {}
    }

    /// Serves until the mount is gone, calls the file system's `destroy` if the kernel did not, and returns.
    pub fn serve(self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a session.
#[derive(Clone, Debug)]
pub struct Unmounter {
    target: PathBuf,
}

impl Unmounter {
    /// Unmounts. The serving threads go on meanwhile, since the kernel writes back what it holds. `EBUSY` while files
    /// are open. Nothing happens if the mount is already gone.
    pub fn unmount(&self) -> io::Result<()> {
        let _ = &self.target;
        Ok(())
    }

    /// Takes the mount out of the tree at once; the session ends when the last open file is closed.
    pub fn detach(&self) -> io::Result<()> {
        Ok(())
    }
}
