//! Tests only: the reference tools as judges of images in memory.

use std::path::Path;
use std::process::{Command, Stdio};

use moafs_disk::mem::MemDisk;

/// The result of a tool.
pub(crate) struct Verdict {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its standard output and standard error.
    pub(crate) text: String,
}

/// Returns true if the tool can be run; says so on the error output if not.
pub(crate) fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
    }
    found
}

/// Runs a tool with the image's path as the last argument.
pub(crate) fn run(tool: &str, options: &[&str], image: &Path) -> Verdict {
    let output = Command::new(tool).args(options).arg(image).stdin(Stdio::null()).output().expect("the tool starts");
    let text = [output.stdout, output.stderr].concat();
    Verdict { code: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
}

/// Runs `e2fsck -fn` on a copy of the disk; returns `None` if the tool is absent.
pub(crate) fn e2fsck(disk: &MemDisk) -> Option<Verdict> {
    have("e2fsck").then(|| {
        let image = tempfile::NamedTempFile::new().expect("a temporary file");
        disk.write_to(image.path()).expect("the image is saved");
        run("e2fsck", &["-fn"], image.path())
    })
}

/// Fails unless `e2fsck -fn` reports nothing, not even a warning.
pub(crate) fn assert_clean(disk: &MemDisk, what: &str) {
    let Some(verdict) = e2fsck(disk) else { return };
    assert_eq!(verdict.code, Some(0), "{what}: {}", verdict.text);
    assert!(!verdict.text.contains("wrong"), "{what}: {}", verdict.text);
}
