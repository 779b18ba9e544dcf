//! `.moafs/defrag`: defragmentation on a live mount, by jobs ([`crate::job`]).

use moafs_fuse::Errno;
use moafs_vfs::defrag::{DefragOptions, DefragReport, StopReason};
use moafs_vfs::types::Ino;
use moafs_vfs::{Format, Vfs};
use serde::{Deserialize, Serialize};

use crate::job::{JobCommand, JobStatus, Jobs, Progress};

/// Name of the control file.
pub const DEFRAG_NAME: &str = "defrag";

/// A command, as written to `.moafs/defrag`.
pub type DefragCommand = JobCommand<DefragJob>;

/// The text of `.moafs/defrag`.
pub type DefragStatus = JobStatus<DefragReport>;

/// A defragmentation job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefragJob {
    /// Number that tells the job from others; chosen by the program that starts it.
    pub token: u64,
    /// A directory, which is walked with all below it, or a file: its inode number, as stat(2) tells it.
    pub inode: u64,
    /// Most bytes to move.
    pub max_bytes: Option<u64>,
    /// Measures only and moves nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// The jobs of a mount.
pub(crate) struct Defrag<F: Format> {
    vfs: Vfs<F>,
    jobs: Jobs<DefragReport>,
}

impl<F: Format> Defrag<F> {
    pub(crate) fn new(vfs: Vfs<F>) -> Defrag<F> {
        Defrag { vfs, jobs: Jobs::new("defrag") }
    }

    /// Returns the text of the control file.
    pub(crate) fn text(&self) -> Vec<u8> {
        self.jobs.text()
    }

    /// Carries out a command.
    pub(crate) fn command(&self, text: &[u8]) -> Result<(), Errno> {
        self.jobs.command(text, |job: DefragJob| {
            let vfs = self.vfs.clone();
            (job.token, move |progress: &Progress<DefragReport>| run(&vfs, &job, progress))
        })
    }

    /// Ends the job and waits for it, before the volume closes.
    pub(crate) fn close(&self) {
        self.jobs.close();
    }
}

fn run<F: Format>(vfs: &Vfs<F>, job: &DefragJob, progress: &Progress<DefragReport>) -> Result<DefragReport, String> {
    let options = DefragOptions { max_bytes: job.max_bytes.unwrap_or(u64::MAX), dry_run: job.dry_run };
    let mut so_far = DefragReport::default();
    let done = vfs.defragment(Ino(job.inode), &options, &mut |report| {
        so_far = *report;
        progress.tell(so_far);
        progress.goes_on()
    });
    done.map_err(|error| {
        progress.tell(DefragReport { ending: StopReason::Stopped, ..so_far });
        error.to_string()
    })
}
