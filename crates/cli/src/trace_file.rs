//! `moafs mount --trace`: the device's requests, in a file that `moafs lab replay` reads.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use moafs_disk::probe::trace::Trace;
use moafs_lab::trace::write;

use crate::error::{CliError, Result};

/// Interval between two writes of the list.
const PAUSE: Duration = Duration::from_millis(200);
/// Requests listed between two writes; a device that is asked more often loses the oldest.
const RECORDS_MAX: usize = 1 << 20;

/// A list that grows as long as this value lives.
pub(crate) struct TraceFile {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<()>>,
    path: PathBuf,
}

impl TraceFile {
    /// Begins a list of the requests that `trace` sees.
    pub(crate) fn start(trace: &Arc<Trace>, path: &Path) -> Result<TraceFile> {
        let fail = || CliError::host("writing the trace", path);
        let mut out = BufWriter::new(File::create(path).map_err(fail())?);
        let (stop, stopped) = channel();
        let trace = Arc::clone(trace);
        trace.record(RECORDS_MAX);
        let body = move || {
            loop {
                let go_on = stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout);
                write(&mut out, &trace.take())?;
                if !go_on {
                    return out.flush();
                }
            }
        };
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(body).map_err(fail())?;
        Ok(TraceFile { stop, thread, path: path.to_owned() })
    }

    /// Writes the rest of the list.
    pub(crate) fn end(self) -> Result<()> {
        drop(self.stop);
        let written =
            self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")));
        written.map_err(CliError::host("writing the trace", &self.path))
    }
}
