//! Machine state that is changed during a run and restored afterwards: the limit of dirty memory,
//! loop devices, processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{PeersError, Result};

/// Time between two looks at something that the run waits for.
const POLL: Duration = Duration::from_millis(10);
/// Longest wait for something that is about to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The request to stop: signals only set a flag, which every long loop looks at. The error that
/// follows unwinds through the guards that unmount, detach and restore.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// Fails if handlers cannot be set.
    pub fn catch() -> Result<Interrupt, PeersError> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .map_err(PeersError::host("catching signals of", Path::new("this process")))?;
        }
        Ok(interrupt)
    }

    /// Returns an interrupt that is set, as if a signal had come.
    #[cfg(test)]
    pub(crate) fn raised() -> Interrupt {
        Interrupt(Arc::new(AtomicBool::new(true)))
    }

    /// Returns an error once a signal came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(PeersError::Interrupted) } else { Ok(()) }
    }
}

/// Returns an error that names the missing condition: root, /dev/fuse, loop devices or programs.
pub(crate) fn check_needs(programs: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !is_installed(program)).collect();
    let needs = |what: &str| Err(PeersError::Needs(what.to_owned()));
    if !rustix::process::geteuid().is_root() {
        needs("root: it attaches loop devices, makes and mounts volumes")
    } else if !Path::new("/dev/fuse").exists() {
        needs("/dev/fuse (FUSE in this kernel or container)")
    } else if !Path::new("/dev/loop-control").exists() {
        needs("loop devices (/dev/loop-control)")
    } else if !missing.is_empty() {
        needs(&format!("these programs: {}; install them or name fewer systems with --system", missing.join(", ")))
    } else {
        Ok(())
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs a tool to its end and returns its standard output. The tool has a process group of its own:
/// the terminal's ^C reaches only us.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let failed = |problem: String| PeersError::program(&name, problem);
    let output = command.stdin(Stdio::null()).process_group(0).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// A modelled disk, served by a process of its own: file systems that wait for it must never wait for us.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    /// Starts `command`, which serves `dir`, and waits until it says that it is ready.
    pub(crate) fn start(command: &mut Command, dir: &Path) -> Result<Server> {
        let failed = |problem: String| PeersError::program("moafs simdisk", problem);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut server = Server { child, dir: dir.to_owned() };
        let mut line = String::new();
        if let Some(stdout) = server.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(|error| failed(error.to_string()))?;
        }
        if line.trim_end() == "ready" { Ok(server) } else { Err(failed("did not get ready".to_owned())) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone if it did not get ready.
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                // No other process waits for the server, so it is killed here.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// An attached loop device; detached when the value is dropped.
#[derive(Debug)]
pub(crate) struct Loop {
    /// Path of the device, `/dev/loopN`.
    pub(crate) device: PathBuf,
}

/// Requests that the kernel hands over before earlier ones are answered; the least it allows. What is more waits in its
/// I/O scheduler, which can sort and merge only what it still has.
const DEPTH: &str = "4";

impl Loop {
    /// Attaches one to `file`, past the page cache, and makes its queue that of a disk: the I/O scheduler in front,
    /// requests of at most `transfer_bytes_max`, no discards (the drives have none).
    pub(crate) fn attach(file: &Path, transfer_bytes_max: u64) -> Result<Loop> {
        let mut losetup = Command::new("losetup");
        let said = run(losetup.args(["--find", "--show", "--direct-io=on", "--sector-size=512"]).arg(file))?;
        let attached = Loop { device: PathBuf::from(said.trim()) };
        let transfer_kb = (transfer_bytes_max >> 10).to_string();
        attached.set("scheduler", "none")?;
        // The depth can be set while there is no scheduler, and stays with the device.
        attached.set("nr_requests", DEPTH)?;
        attached.set("scheduler", SCHEDULER)?;
        attached.set("max_sectors_kb", &transfer_kb)?;
        attached.set("rotational", "1")?;
        attached.set("discard_max_bytes", "0")?;
        Ok(attached)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let device = self.device.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(device).join("queue").join(name);
        fs::write(&path, value).map_err(PeersError::host("setting", &path))
    }
}

/// The kernel's I/O scheduler, the usual one of a disk.
pub const SCHEDULER: &str = "mq-deadline";

impl Drop for Loop {
    fn drop(&mut self) {
        // While another process has the device open, the kernel detaches it at the last close.
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// The kernel's limit of dirty memory; the value before is restored when this is dropped.
#[derive(Debug)]
pub(crate) struct DirtyLimit {
    before: Vec<(PathBuf, String)>,
}

/// Bytes and percent exclude each other: writing one clears the other. What is nonzero counts.
const DIRTY: [&str; 4] = ["dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio"];

impl DirtyLimit {
    /// Sets the limit: writers wait from `bytes` on, and the kernel begins to write at half of it.
    pub(crate) fn set(bytes: u64) -> Result<DirtyLimit> {
        let path = |name: &str| Path::new("/proc/sys/vm").join(name);
        let read = |name: &str| {
            let path = path(name);
            let value = fs::read_to_string(&path).map_err(PeersError::host("reading", &path))?;
            Ok((path, value.trim().to_owned()))
        };
        let mut before = DIRTY.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        before.retain(|(_, value)| value != "0");
        let limit = DirtyLimit { before };
        for (name, bytes) in [("dirty_bytes", bytes), ("dirty_background_bytes", bytes / 2)] {
            let path = path(name);
            fs::write(&path, bytes.to_string()).map_err(PeersError::host("setting", &path))?;
        }
        Ok(limit)
    }
}

impl Drop for DirtyLimit {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            if let Err(error) = fs::write(path, value) {
                eprintln!("moafs lab: setting {} back to {value}: {error}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_tool_tells_why() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
    }

    #[test]
    fn a_server_that_never_gets_ready_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Server::start(Command::new("sh").args(["-c", "echo no"]), dir.path()).is_err());
    }

    #[test]
    fn a_missing_program_is_named() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: needs root");
        }
        let error = check_needs(&["no-such-program-here"]).unwrap_err().to_string();
        assert!(error.contains("no-such-program-here") || error.contains("/dev/"), "{error}");
    }
}
