//! `.moafs/defrag`: defragmentation on a live mount.
//!
//! Root or the mount's owner writes one JSON object (at offset 0, in one write) and reads the progress, each time by
//! opening the file anew: a look-up is a snapshot, as with every control file. One job runs at a time, in a thread of
//! its own; it takes the volume part by part, so requests are served meanwhile, and ends before the volume closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use moafs_fuse::Errno;
use moafs_vfs::defrag::{DefragOptions, DefragReport, StopReason};
use moafs_vfs::types::Ino;
use moafs_vfs::{Format, Vfs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Name of the control file.
pub const DEFRAG_NAME: &str = "defrag";

/// Longest command in bytes.
const COMMAND_BYTES_MAX: usize = 4096;

/// A command, as written to `.moafs/defrag`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DefragCommand {
    /// Starts a job, unless one is running (EBUSY).
    Start(DefragJob),
    /// Ends the job with this token at the next safe point.
    Stop {
        /// The token given when the job was started.
        token: u64,
    },
}

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

/// The text of `.moafs/defrag`: the job that runs, or the last one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DefragStatus {
    /// The job's token; `None` if there was none yet.
    pub token: Option<u64>,
    /// True while it runs.
    pub running: bool,
    /// Progress or result of the job.
    pub healed: DefragReport,
    /// Error that ended the job.
    pub error: Option<String>,
}

/// The jobs of a mount.
pub(crate) struct Defrag<F: Format> {
    vfs: Vfs<F>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    status: Mutex<DefragStatus>,
    stop: AtomicBool,
}

impl<F: Format> Defrag<F> {
    pub(crate) fn new(vfs: Vfs<F>) -> Defrag<F> {
        Defrag { vfs, shared: Arc::default(), thread: Mutex::new(None) }
    }

    /// Returns the text of the control file.
    pub(crate) fn text(&self) -> Vec<u8> {
        let status = self.shared.status.lock().clone();
        let mut text = serde_json::to_vec_pretty(&status).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Carries out a command.
    pub(crate) fn command(&self, text: &[u8]) -> Result<(), Errno> {
        if text.len() > COMMAND_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        match serde_json::from_slice(text).map_err(|_| Errno::EINVAL)? {
            DefragCommand::Start(job) => self.start(job),
            DefragCommand::Stop { token } => {
                let status = self.shared.status.lock();
                if status.running && status.token == Some(token) {
                    self.shared.stop.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    fn start(&self, job: DefragJob) -> Result<(), Errno> {
        let mut thread = self.thread.lock();
        {
            let mut status = self.shared.status.lock();
            if status.running {
                return Err(Errno::EBUSY);
            }
            *status = DefragStatus { token: Some(job.token), running: true, ..DefragStatus::default() };
        }
        self.shared.stop.store(false, Ordering::Relaxed);
        let (vfs, shared) = (self.vfs.clone(), Arc::clone(&self.shared));
        let spawned = std::thread::Builder::new().name("defrag".to_owned()).spawn(move || shared.run(&vfs, &job));
        match spawned {
            Ok(begun) => {
                // The previous thread has ended.
                *thread = Some(begun);
                Ok(())
            }
            Err(error) => {
                self.shared.status.lock().running = false;
                Err(Errno::new(error.raw_os_error().unwrap_or(libc::EAGAIN)))
            }
        }
    }

    /// Ends the job and waits for it, before the volume closes.
    pub(crate) fn close(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run<F: Format>(&self, vfs: &Vfs<F>, job: &DefragJob) {
        let options = DefragOptions { max_bytes: job.max_bytes.unwrap_or(u64::MAX), dry_run: job.dry_run };
        let done = vfs.defragment(Ino(job.inode), &options, &mut |healed| {
            self.status.lock().healed = *healed;
            !self.stop.load(Ordering::Relaxed)
        });
        let mut status = self.status.lock();
        status.running = false;
        match done {
            Ok(healed) => status.healed = healed,
            Err(error) => {
                status.healed.ending = StopReason::Stopped;
                status.error = Some(error.to_string());
            }
        }
    }
}
