//! Running the reference tools as black boxes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where a tool is: `PATH`, and the directories of system tools that users' paths often lack.
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

/// Both output streams as text.
pub fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// Makes a volume with `mke2fs`: `args` are its options, `size` its size argument. False if the tool
/// is missing.
///
/// # Panics
/// If the tool refuses: the test asked for something it cannot do.
pub fn mke2fs(image: &Path, args: &[&str], size: &str) -> bool {
    let image = image.to_str().expect("test paths are text");
    let all: Vec<&str> = ["-F", "-q"].iter().chain(args).copied().chain([image, size]).collect();
    let Some(output) = run("mke2fs", &all) else { return false };
    assert!(output.status.success(), "mke2fs {all:?}: {}", text(&output));
    true
}

/// Runs `debugfs -w` with a script of commands. False if the tool is missing.
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

/// A place for scratch images: memory if there is some, so that thousands of states do not wear a disk.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let writable = std::fs::metadata(memory).is_ok_and(|meta| meta.is_dir() && !meta.permissions().readonly());
    if writable { memory.to_owned() } else { std::env::temp_dir() }
}
