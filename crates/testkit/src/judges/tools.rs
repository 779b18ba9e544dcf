//! Runs the reference tools as black boxes.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Finds a tool in `PATH`, or in the directories of system tools that users' paths often lack.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    dirs.into_iter().map(|dir| dir.join(tool)).find(|file| file.is_file())
}

/// Runs a tool to its end; `None` if it is not installed.
pub fn run(tool: &str, args: &[&str]) -> Option<Output> {
    let path = find(tool)?;
    Command::new(path).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output().ok()
}

/// Returns both output streams as text.
pub fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// The result of a tool that was given answers and a limited time.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it, or it was ended because it took too long.
    pub exit: Option<i32>,
    /// Everything it printed, in order.
    pub text: String,
}

/// Longest time of a tool on a test's image, on the slowest machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Runs a tool in `dir`, answering its questions with `answers`; ends it if it takes too long. `None` if it is not
/// installed.
pub fn run_answered(tool: &str, args: &[&str], answers: &str, dir: &Path) -> Option<Ended> {
    let path = find(tool)?;
    let mut output = tempfile::tempfile_in(scratch()).ok()?;
    let mut child = Command::new(path)
        .args(args)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(output.try_clone().ok()?)
        .stderr(output.try_clone().ok()?)
        .spawn()
        .ok()?;
    // A tool that ends without asking breaks the pipe.
    drop(child.stdin.take().expect("stdin is piped").write_all(answers.as_bytes()));
    let exit = wait_for(&mut child);
    let mut text = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut text)).ok()?;
    Some(Ended { exit, text: String::from_utf8_lossy(&text).into_owned() })
}

fn wait_for(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < TIME_MAX {
        if let Ok(Some(status)) = child.try_wait() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Errors are ignored: a child that neither ends nor can be ended cannot be handled.
    drop(child.kill().and_then(|()| child.wait()));
    None
}

/// Makes a volume with `mke2fs`: `args` are its options, `size` its size argument. Returns false if the tool is
/// missing.
///
/// # Panics
/// If the tool refuses the options.
pub fn mke2fs(image: &Path, args: &[&str], size: &str) -> bool {
    let image = image.to_str().expect("test paths are text");
    let all: Vec<&str> = ["-F", "-q"].iter().chain(args).copied().chain([image, size]).collect();
    let Some(output) = run("mke2fs", &all) else { return false };
    assert!(output.status.success(), "mke2fs {all:?}: {}", text(&output));
    true
}

/// Makes a volume of `bytes` with `mkfs.f2fs`: `args` are its options. The same arguments give the same bytes. Returns
/// false if the tool is missing.
///
/// # Panics
/// If the tool refuses the options.
pub fn mkfs_f2fs(image: &Path, args: &[&str], bytes: u64) -> bool {
    let sized = std::fs::File::options().write(true).open(image).and_then(|file| file.set_len(bytes));
    sized.expect("a scratch image can have any size");
    let image = image.to_str().expect("test paths are text");
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let fixed = ["-f", "-q", "-r", "-T", "1700000000", "-U", uuid];
    let all: Vec<&str> = fixed.iter().chain(args).copied().chain([image]).collect();
    let Some(output) = run("mkfs.f2fs", &all) else { return false };
    assert!(output.status.success(), "mkfs.f2fs {all:?}: {}", text(&output));
    true
}

/// Runs `debugfs -w` with a script of commands. Returns false if the tool is missing.
///
/// # Panics
/// If it cannot be started.
pub fn debugfs(image: &Path, script: &str) -> bool {
    let Some(path) = find("debugfs") else { return false };
    let mut child = Command::new(path)
        .args(["-w", "-f", "-"])
        .arg(image)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("debugfs starts");
    let written = child.stdin.take().expect("stdin is piped").write_all(script.as_bytes());
    let status = child.wait().expect("debugfs ends");
    written.is_ok() && status.success()
}

/// Returns the directory for scratch images: in memory if possible, so that thousands of states do not wear a disk.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let writable = std::fs::metadata(memory).is_ok_and(|meta| meta.is_dir() && !meta.permissions().readonly());
    if writable { memory.to_owned() } else { std::env::temp_dir() }
}
