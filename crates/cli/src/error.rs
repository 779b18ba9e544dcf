//! What a command can fail with: what was being done, where, and the way out; and the exit code.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use moafs_disk::DiskError;
use moafs_mount::options::OptionError;
use moafs_mount::source::SourceError;
use moafs_mount::unmount::UnmountError;
use moafs_mount::{ServeError, serve};

/// Result of commands.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// Exit code of mount(8) for "mount failure".
const MOUNT_FAILURE: u8 = 32;
/// Exit code of most commands for any failure; of mount(8) for wrong arguments.
const FAILURE: u8 = 1;

/// What a command can fail with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Something on the host.
    #[error("{what} {}: {error}", path.display())]
    Host { what: &'static str, path: PathBuf, error: io::Error },
    /// Something on a volume.
    #[error("{what} {at}: {error}")]
    Volume { what: &'static str, at: String, error: moafs_vfs::Error },
    /// A volume that cannot be opened.
    #[error("{}: {error}", image.display())]
    Open { image: PathBuf, error: moafs_vfs::Error },
    /// Neither magic number is where it should be.
    #[error("{0} holds neither an ext2 nor an F2FS volume; if it held one, `moafs fsck -n {0}` looks for a copy of its superblock", image.display())]
    NoVolume { image: PathBuf },
    /// An ext2 volume whose first blocks were overwritten.
    #[error("{0}: the superblock is lost, and block {copy} holds a copy: `moafs fsck -y {0}` restores it", image.display())]
    SuperblockLost { image: PathBuf, copy: u64 },
    /// The image or device.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// An image that somebody uses.
    #[error("{} is in use: if it is mounted, work on the mount (`moafs umount` releases it), else wait for the other \
             command", image.display())]
    Busy { image: PathBuf },
    /// The lab.
    #[error("{0}")]
    Lab(#[from] moafs_lab::LabError),
    /// Mount options.
    #[error("{0}")]
    Option(#[from] OptionError),
    /// The source of a mount.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// A mount.
    #[error("{}: {error}", image.display())]
    Serve { image: PathBuf, error: serve::ServeError },
    /// A modelled disk.
    #[error("{}: {error}", dir.display())]
    SimDisk { dir: PathBuf, error: moafs_simdisk::ServeError },
    /// A mount point.
    #[error("mount point {}: {error}", path.display())]
    Target { path: PathBuf, error: io::Error },
    /// The daemon ended before the mount could be used. It has said why.
    #[error("")]
    Daemon { code: u8 },
    /// A report of the lab.
    #[error("{0}")]
    Report(#[from] moafs_lab::report::ReportError),
    /// An unmount.
    #[error("{0}")]
    Unmount(#[from] UnmountError),
    /// A copy went on after failures, which were told.
    #[error("{failed} of {all} files could not be copied")]
    Incomplete { failed: u64, all: u64 },
    /// Output that nobody reads any more, or a full disk below it.
    #[error("writing the output: {0}")]
    Output(#[source] io::Error),
}

impl CliError {
    /// An error of a host file.
    pub(crate) fn host(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CliError {
        move |error| CliError::Host { what, path: path.to_owned(), error }
    }

    /// An error of mounting `image`.
    pub(crate) fn serve(image: &Path) -> impl FnOnce(ServeError) -> CliError {
        move |error| CliError::Serve { image: image.to_owned(), error }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            CliError::Daemon { code } => (*code).into(),
            CliError::Serve { .. }
            | CliError::SimDisk { .. }
            | CliError::Source(_)
            | CliError::Target { .. }
            | CliError::Unmount(_) => MOUNT_FAILURE.into(),
            _ => FAILURE.into(),
        }
    }

    /// True if a reader of our output went away, as `head` does: no reason to complain.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
