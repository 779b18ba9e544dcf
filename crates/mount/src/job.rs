//! Jobs that a control file starts: one at a time, in a thread of its own.
//!
//! Root or the mount's owner writes one JSON object (at offset 0, in one write) and reads the progress, each time by
//! opening the file anew: a look-up is a snapshot, as with every control file. Requests are served meanwhile, and a job
//! ends before the volume closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use moafs_fuse::Errno;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest command in bytes.
const COMMAND_BYTES_MAX: usize = 8192;

/// A command, as written to the control file of jobs `J`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum JobCommand<J> {
    /// Starts a job, unless one is running (EBUSY).
    Start(J),
    /// Ends the job with this token at the next safe point.
    Stop {
        /// The token given when the job was started.
        token: u64,
    },
    /// Gives up the outcome of the job with this token.
    Forget {
        /// The token given when the job was started.
        token: u64,
    },
}

/// The text of the control file: the job that runs, or the last one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobStatus<T> {
    /// The job's token; `None` if there was none yet.
    pub token: Option<u64>,
    /// True while it runs.
    pub running: bool,
    /// Progress or result of the job.
    pub outcome: T,
    /// Error that ended the job.
    pub error: Option<String>,
}

/// The jobs of one control file.
pub(crate) struct Jobs<T> {
    /// Name of the thread.
    name: &'static str,
    progress: Progress<T>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The job's view of itself.
pub(crate) struct Progress<T>(Arc<Shared<T>>);

impl<T> Clone for Progress<T> {
    fn clone(&self) -> Self {
        Progress(Arc::clone(&self.0))
    }
}

struct Shared<T> {
    status: Mutex<JobStatus<T>>,
    stop: AtomicBool,
}

impl<T> Progress<T> {
    /// Tells how far the job is.
    pub(crate) fn tell(&self, outcome: T) {
        self.0.status.lock().outcome = outcome;
    }

    /// Returns true until the job is to end.
    pub(crate) fn goes_on(&self) -> bool {
        !self.0.stop.load(Ordering::Relaxed)
    }
}

impl<T: Clone + Default + Serialize + Send + 'static> Jobs<T> {
    pub(crate) fn new(name: &'static str) -> Jobs<T> {
        let shared = Shared { status: Mutex::default(), stop: AtomicBool::new(false) };
        Jobs { name, progress: Progress(Arc::new(shared)), thread: Mutex::new(None) }
    }

    /// Returns the text of the control file.
    pub(crate) fn text(&self) -> Vec<u8> {
        let status = self.progress.0.status.lock().clone();
        let mut text = serde_json::to_vec_pretty(&status).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Carries out a command. `start` returns the token of a job, and its work.
    pub(crate) fn command<J: DeserializeOwned, W>(
        &self,
        text: &[u8],
        start: impl FnOnce(J) -> (u64, W),
    ) -> Result<(), Errno>
    where
        W: FnOnce(&Progress<T>) -> Result<T, String> + Send + 'static,
    {
        if text.len() > COMMAND_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        match serde_json::from_slice(text).map_err(|_| Errno::EINVAL)? {
            JobCommand::Start(job) => {
                let (token, work) = start(job);
                self.start(token, work)
            }
            JobCommand::Stop { token } => {
                let status = self.progress.0.status.lock();
                if status.running && status.token == Some(token) {
                    self.progress.0.stop.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            JobCommand::Forget { token } => {
                let mut status = self.progress.0.status.lock();
                if !status.running && status.token == Some(token) {
                    *status = JobStatus::default();
                }
                Ok(())
            }
        }
    }

    fn start(
        &self,
        token: u64,
        work: impl FnOnce(&Progress<T>) -> Result<T, String> + Send + 'static,
    ) -> Result<(), Errno> {
        let mut thread = self.thread.lock();
        {
            let mut status = self.progress.0.status.lock();
            if status.running {
                return Err(Errno::EBUSY);
            }
            *status = JobStatus { token: Some(token), running: true, ..JobStatus::default() };
        }
        self.progress.0.stop.store(false, Ordering::Relaxed);
        let progress = self.progress.clone();
        let spawned = std::thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            let done = work(&progress);
            let mut status = progress.0.status.lock();
            status.running = false;
            match done {
                Ok(outcome) => status.outcome = outcome,
                Err(error) => status.error = Some(error),
            }
        });
        match spawned {
            Ok(begun) => {
                // The previous thread has ended.
                *thread = Some(begun);
                Ok(())
            }
            Err(error) => {
                self.progress.0.status.lock().running = false;
                Err(Errno::new(error.raw_os_error().unwrap_or(libc::EAGAIN)))
            }
        }
    }

    /// Ends the job and waits for it, before the volume closes.
    pub(crate) fn close(&self) {
        self.progress.0.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(jobs: &Jobs<u64>) -> JobStatus<u64> {
        serde_json::from_slice(&jobs.text()).unwrap()
    }

    fn ended(jobs: &Jobs<u64>) -> JobStatus<u64> {
        while status(jobs).running {
            std::thread::yield_now();
        }
        status(jobs)
    }

    #[test]
    fn one_job_runs_at_a_time_until_it_is_done_or_stopped() {
        let jobs = Jobs::new("job");
        let endless = |token: u64| {
            let work = |progress: &Progress<u64>| {
                while progress.goes_on() {
                    progress.tell(1);
                }
                Ok(2)
            };
            (token, work)
        };
        jobs.command(br#"{"start": 7}"#, endless).unwrap();
        assert_eq!(jobs.command(br#"{"start": 8}"#, endless), Err(Errno::EBUSY));
        jobs.command(br#"{"stop": {"token": 8}}"#, endless).unwrap();
        jobs.command(br#"{"forget": {"token": 7}}"#, endless).unwrap();
        assert!(status(&jobs).running && status(&jobs).token == Some(7));
        jobs.command(br#"{"stop": {"token": 7}}"#, endless).unwrap();
        assert_eq!((ended(&jobs).outcome, status(&jobs).error), (2, None));
        jobs.command(br#"{"forget": {"token": 7}}"#, endless).unwrap();
        assert_eq!((status(&jobs).token, status(&jobs).outcome), (None, 0));
        jobs.command(br#"{"start": 9}"#, |token: u64| (token, |_: &Progress<u64>| Err("no".to_owned()))).unwrap();
        assert_eq!(ended(&jobs).error.as_deref(), Some("no"));
        for wrong in [&b""[..], b"{}", br#"{"begin": 7}"#, &[b' '; COMMAND_BYTES_MAX + 1]] {
            assert!(jobs.command(wrong, endless).is_err());
        }
        jobs.command(br#"{"start": 10}"#, endless).unwrap();
        jobs.close();
        assert!(!status(&jobs).running);
    }
}
