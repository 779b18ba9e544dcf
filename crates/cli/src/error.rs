//! Errors of commands: the failed operation, the place, the way out, and the exit code.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use moafs_disk::DiskError;
use moafs_mount::options::OptionError;
use moafs_mount::source::SourceError;
use moafs_mount::unmount::UnmountError;
use moafs_mount::{ServeError, serve};

use crate::escape;

/// The result type of commands.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// Exit code of a command that was interrupted.
pub(crate) const INTERRUPTED: u8 = 130;
/// Exit code of mount(8) for "mount failure".
const MOUNT_FAILURE: u8 = 32;
/// Exit code of most commands for any failure; of mount(8) for wrong arguments.
const FAILURE: u8 = 1;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// An operation on the host failed.
    #[error("{what} {}: {error}", escape::path(path))]
    Host { what: &'static str, path: PathBuf, error: io::Error },
    /// An operation failed on a file that was reached by a path and names; `at` is fit to be shown.
    #[error("{what} {at}: {error}")]
    HostFile { what: &'static str, at: String, error: io::Error },
    /// An operation on a volume failed.
    #[error("{what} {at}: {error}")]
    Volume { what: &'static str, at: String, error: moafs_vfs::Error },
    /// A volume that cannot be opened.
    #[error("{}: {error}", escape::path(image))]
    Open { image: PathBuf, error: moafs_vfs::Error },
    /// Neither magic number is at its place.
    #[error(
        "{0} holds no ext2, ext3, ext4 or F2FS volume, nor a copy of an ext superblock where copies usually are; \
if you know its block, `moafs fsck --superblock BLOCK {0}` uses it",
        escape::path(image)
    )]
    NoVolume { image: PathBuf },
    /// A compressed file.
    #[error(
        "{0} is compressed ({program}), and may hold an image: unpack it first, with `{program} -d {0}`",
        escape::path(image)
    )]
    Compressed { image: PathBuf, program: &'static str },
    /// A disk with partitions, and none or several of them are meant. `list` is a line for each.
    #[error("{0}: {problem}; write {0}@NUMBER for one of:{list}", escape::path(image))]
    Partitions { image: PathBuf, problem: String, list: String },
    /// A volume of the ext family whose first blocks were overwritten.
    #[error(
        "{0}: the superblock is lost, and block {copy} holds a copy: `moafs fsck -y {0}` restores it",
        escape::path(image)
    )]
    SuperblockLost { image: PathBuf, copy: u64 },
    /// The image or device cannot be accessed.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// The image is in use by another process.
    #[error("{} is in use: {holder}", escape::path(image))]
    Busy { image: PathBuf, holder: String },
    /// An experiment of the lab failed.
    #[error("{0}")]
    Lab(#[from] moafs_lab::LabError),
    /// The mount options are wrong.
    #[error("{0}")]
    Option(#[from] OptionError),
    /// The source of a mount cannot be used.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// A volume could not be mounted, though the arguments were right.
    #[error("{0}")]
    Mount(Box<CliError>),
    /// A mount could not be served.
    #[error("{}: {error}", escape::path(image))]
    Serve { image: PathBuf, error: serve::ServeError },
    /// A modelled disk could not be served.
    #[error("{}: {error}", escape::path(dir))]
    SimDisk { dir: PathBuf, error: moafs_simdisk::ServeError },
    /// A mount point cannot be used.
    #[error("mount point {}: {error}", escape::path(path))]
    Target { path: PathBuf, error: io::Error },
    /// The daemon ended before the mount could be used. It has printed the reason.
    #[error("")]
    Daemon { code: u8 },
    /// A report of the lab cannot be made or read.
    #[error("{0}")]
    Report(#[from] moafs_lab::report::ReportError),
    /// The volume could not be unmounted.
    #[error("{0}")]
    Unmount(#[from] UnmountError),
    /// A copy went on after failures, which were reported.
    #[error("{failed} of {all} files could not be copied")]
    Incomplete { failed: u64, all: u64 },
    /// A copy, move or link whose source and target are one file.
    #[error("{from} and {to} are the same file: nothing is {done}")]
    SameFile { from: String, to: String, done: &'static str },
    /// A directory that a walk met a second time.
    #[error(
        "{at}: this directory was met before: it has several parents or contains itself; check the volume \
             (moafs fsck)"
    )]
    MetBefore { at: String },
    /// A directory that a walk through symbolic links met within itself.
    #[error("{at}: a symbolic link leads back to a directory that it lies in; it is left out")]
    LinkCycle { at: String },
    /// A directory whose `..` leads elsewhere than to the directory it was found in.
    #[error("{at}: this directory's parent is another one: it is left alone; check the volume (moafs fsck)")]
    OtherParent { at: String },
    /// A file, or all of them, with more data than its volume can hold: blocks belong to several
    /// files, or several times to one.
    #[error("{at} has more blocks than the whole volume: blocks are used several times; check it (moafs fsck)")]
    TooManyBlocks { at: String },
    /// SIGINT or SIGTERM interrupted the command.
    #[error("interrupted")]
    Interrupted,
    /// A walk went on after failures, which were reported.
    #[error("{failed} entries could not be {done}")]
    Partial { failed: u64, done: &'static str },
    /// The output has no reader any more, or the disk below it is full.
    #[error("writing the output: {0}")]
    Output(#[source] io::Error),
}

impl CliError {
    /// Makes an error of a host file, for `map_err`.
    pub(crate) fn host(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CliError {
        move |error| CliError::Host { what, path: path.to_owned(), error }
    }

    /// Makes an error of a file that does not exist; `at` is fit to be shown.
    pub(crate) fn missing(at: String) -> CliError {
        CliError::HostFile { what: "looking up", at, error: io::Error::from_raw_os_error(libc::ENOENT) }
    }

    /// Makes an error of arguments that lack a source or a destination.
    pub(crate) fn few_places() -> CliError {
        CliError::Usage("give a source and a destination".to_owned())
    }

    /// Makes an error of mounting `image`, for `map_err`.
    pub(crate) fn serve(image: &Path) -> impl FnOnce(ServeError) -> CliError {
        move |error| CliError::Serve { image: image.to_owned(), error }
    }

    /// Makes an error of a mount, of what went wrong in it. Wrong options stay what they are.
    pub(crate) fn of_mount(self) -> CliError {
        match self {
            CliError::Usage(_) | CliError::Option(_) | CliError::Daemon { .. } | CliError::Interrupted => self,
            other => CliError::Mount(Box::new(other)),
        }
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            CliError::Daemon { code } => (*code).into(),
            CliError::Interrupted => INTERRUPTED.into(),
            CliError::Mount(_)
            | CliError::Serve { .. }
            | CliError::SimDisk { .. }
            | CliError::Source(_)
            | CliError::Target { .. }
            | CliError::Unmount(_) => MOUNT_FAILURE.into(),
            _ => FAILURE.into(),
        }
    }

    /// Returns true if a reader of our output went away, as `head` does: no reason to complain.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
