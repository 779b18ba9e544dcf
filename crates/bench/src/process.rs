//! Running tools to their end, and keeping daemons that end with this program.
//!
//! Every child has a process group of its own: the terminal's ^C reaches only this program, which
//! unmounts in order.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{BenchError, Result};

/// Time between two checks whether a child has ended.
const POLL: Duration = Duration::from_millis(5);
/// Runs a program in a POSIX session of its own (util-linux).
const SETSID: &str = "setsid";

/// Runs a tool to its end and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = name_of(command);
    let failed = |problem: String| BenchError::program(&name, problem);
    let output = command.stdin(Stdio::null()).process_group(0).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// Returns the command that starts the server of a mount, to which arguments are added. It gets a POSIX session of its
/// own, as a service has it: the kernel's scheduler favours clients in the session of the server.
pub(crate) fn server_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(SETSID);
    command.arg("--wait").arg(program);
    command
}

/// Returns the program's name, without its directory.
pub(crate) fn name_of(command: &Command) -> String {
    let server = command.get_args().nth(1).filter(|_| command.get_program() == SETSID);
    let program = Path::new(server.unwrap_or(command.get_program()));
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Returns true if a program can be found in `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Returns the CPU time that the running threads of a process have used; threads that have ended
/// are not counted.
pub(crate) fn cpu_time(pid: u64) -> Result<Duration> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut used_ns = 0;
    for task in tasks.read_dir().map_err(BenchError::host("listing", &tasks))? {
        let path = task.map_err(BenchError::host("listing", &tasks))?.path().join("schedstat");
        // A thread may end after its directory was listed.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let on_cpu = text.split(' ').next().and_then(|field| field.parse::<u64>().ok());
        used_ns += on_cpu.ok_or_else(|| BenchError::program("the kernel", format!("wrote {text:?} to {path:?}")))?;
    }
    Ok(Duration::from_nanos(used_ns))
}

/// A server of a mount, in the foreground; killed if it outlives this.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    name: String,
}

impl Server {
    /// Starts the server, by a [`server_command`].
    pub(crate) fn spawn(command: &mut Command) -> Result<Server> {
        let name = name_of(command);
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| BenchError::program(&name, error.to_string()))?;
        Ok(Server { child, name })
    }

    /// Returns the server's process id.
    pub(crate) fn pid(&self) -> u64 {
        u64::from(self.child.id())
    }

    /// Waits for a line that starts with `word` on the server's standard output, which must be
    /// piped, and returns the rest of the line.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> Result<String> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(|error| BenchError::program(&self.name, error.to_string()))?;
        }
        let rest = line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        rest.ok_or_else(|| BenchError::program(&self.name, "did not get ready"))
    }

    /// Waits until `ready` says so, at most `timeout`.
    pub(crate) fn wait_until(&mut self, timeout: Duration, ready: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + timeout;
        while !ready()? {
            if self.has_ended() || Instant::now() > end {
                return Err(BenchError::program(&self.name, "did not get ready"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for the server's end, at most `timeout`.
    pub(crate) fn wait_for_end(&mut self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        while !self.has_ended() {
            if Instant::now() > end {
                return Err(BenchError::program(&self.name, "still runs after its mount is gone"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The process may have ended meanwhile, and an error here cannot be reported to the
            // caller.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The programs of this workspace that are measured.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// Path of the `moafs` command.
    pub(crate) moafs: PathBuf,
    /// Path of the null file system's program.
    pub(crate) nullfs: PathBuf,
}

impl Programs {
    /// Returns the given paths; a program without one is built in the release profile.
    pub(crate) fn find(moafs: Option<PathBuf>, nullfs: Option<PathBuf>) -> Result<Programs> {
        let moafs = moafs.map_or_else(|| build("moafs", &["-p", "moafs"]), Ok)?;
        let nullfs = nullfs.map_or_else(|| build("nullfs", &["-p", "moafs-fuse", "--example", "nullfs"]), Ok)?;
        for program in [&moafs, &nullfs] {
            program.metadata().map_err(BenchError::host("finding", program))?;
        }
        Ok(Programs { moafs, nullfs })
    }
}

/// Builds a target and returns the path of its executable, as cargo reports it.
fn build(target: &str, selection: &[&str]) -> Result<PathBuf> {
    eprintln!("building {target}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let format = "--message-format=json-render-diagnostics";
    let messages = run(Command::new(cargo).args(["build", "--release", "--quiet", format]).args(selection))?;
    let executable = messages.lines().find_map(|line| executable_of(target, line));
    executable.ok_or_else(|| BenchError::program("cargo", format!("built no {target}")))
}

fn executable_of(target: &str, message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let named = message["target"]["name"] == target;
    named.then(|| message["executable"].as_str().map(PathBuf::from))?
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
    fn a_server_that_never_gets_ready_is_ended() {
        let mut server = Server::spawn(server_command("sleep").arg("60")).unwrap();
        assert!(server.wait_until(Duration::from_millis(20), || Ok(false)).is_err());
        let pid = server.child.id();
        drop(server);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn work_shows_in_the_cpu_time() {
        let own = u64::from(std::process::id());
        let before = cpu_time(own).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(cpu_time(own).unwrap() > before);
        assert!(cpu_time(u64::MAX).is_err());
    }

    #[test]
    fn the_executable_is_taken_from_the_right_message() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"moafs"},"executable":"/t/moafs"}"#;
        assert_eq!(executable_of("moafs", message), Some(PathBuf::from("/t/moafs")));
        assert_eq!(executable_of("nullfs", message), None);
        assert_eq!(executable_of("moafs", "not json"), None);
    }
}
