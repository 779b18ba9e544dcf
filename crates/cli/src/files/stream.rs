//! Contents without a place of their own: `-`, `/dev/stdin`, `/dev/stdout`, pipes and terminals.
//!
//! They are read and written once, from beginning to end. A file that is made of them appears under its name when all
//! of it is there, as every copy does ([`super::stage`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use moafs_vfs::types::FileKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::copy::Surroundings;
use super::stage::{Stage, Waiting, temporary_name};
use super::tree::{New, Tree};
use crate::error::{CliError, Result};
use crate::output;
use crate::stop::Stop;

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Longest wait for input before a look at the signals, in nanoseconds.
const WAIT_NS: i64 = 100_000_000;

/// Contents to be read.
pub(super) struct Input {
    file: File,
    shown: String,
}

impl Input {
    /// Opens a source of the host that is read as a stream; `None` if it is a file, or copied as what it is because
    /// `keeps_special`.
    pub(super) fn of(path: &Path, keeps_special: bool) -> Result<Option<Input>> {
        let fail = || CliError::host("opening", path);
        let file = match path.as_os_str().as_bytes() {
            b"-" | b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0" => {
                File::from(io::stdin().as_fd().try_clone_to_owned().map_err(fail())?)
            }
            _ if keeps_special || !is_stream(path) => return Ok(None),
            _ => File::open(path).map_err(fail())?,
        };
        let shown = if path.as_os_str() == "-" { "standard input".to_owned() } else { output::path(path) };
        Ok(Some(Input { file, shown }))
    }

    /// Gives `each` all bytes, with their place in the stream. Returns their number.
    fn drain(&mut self, stop: &Stop, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<u64> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            let len = self.read(&mut chunk, stop)?;
            if len == 0 {
                return Ok(at);
            }
            each(at, &chunk[..len])?;
            at += len as u64;
        }
    }

    /// Reads some bytes; 0 at the end.
    fn read(&mut self, into: &mut [u8], stop: &Stop) -> Result<usize> {
        loop {
            stop.check()?;
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            // A read that waits would not end when a signal comes.
            if let Ok(0) | Err(Errno::INTR) = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: WAIT_NS })) {
                continue;
            }
            match self.file.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CliError::HostFile { what: "reading", at: self.shown.clone(), error }),
                Ok(len) => return Ok(len),
            }
        }
    }
}

/// A place for contents.
pub(super) enum Output {
    Standard,
    Other { file: File, shown: String },
}

impl Output {
    /// Opens a destination of the host that is written as a stream; `None` if it is a file or does not exist.
    pub(super) fn of(path: &Path) -> Result<Option<Output>> {
        let fail = || CliError::host("opening", path);
        let file = match path.as_os_str().as_bytes() {
            b"-" | b"/dev/stdout" | b"/dev/fd/1" | b"/proc/self/fd/1" => return Ok(Some(Output::Standard)),
            b"/dev/stderr" | b"/dev/fd/2" | b"/proc/self/fd/2" => {
                File::from(io::stderr().as_fd().try_clone_to_owned().map_err(fail())?)
            }
            _ if !is_stream(path) => return Ok(None),
            _ => File::options().write(true).open(path).map_err(fail())?,
        };
        Ok(Some(Output::Other { file, shown: output::path(path) }))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Output::Standard => output::print(bytes),
            Output::Other { file, shown } => {
                let fail = |error| CliError::HostFile { what: "writing", at: shown.clone(), error };
                file.write_all(bytes).map_err(fail)
            }
        }
    }
}

/// Returns true if a path leads to a pipe or a character device, such as a terminal.
fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_fifo() || meta.file_type().is_char_device())
}

/// Writes the contents of a file of a tree. Returns the number of bytes.
pub(super) fn send<T: Tree>(tree: &T, node: &T::Node, to: &mut Output, stop: &Stop) -> Result<u64> {
    let refused = |errno| CliError::HostFile {
        what: "printing",
        at: tree.describe(node),
        error: io::Error::from_raw_os_error(errno),
    };
    match tree.meta(node)?.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(refused(libc::EISDIR)),
        _ => return Err(refused(libc::EINVAL)),
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let len = tree.read(node, at, &mut chunk)?;
        if len == 0 {
            return Ok(at);
        }
        to.write(&chunk[..len])?;
        at += len as u64;
        stop.check()?;
    }
}

/// Writes what a stream brings to another one. Returns the number of bytes.
pub(super) fn pass_on(mut input: Input, to: &mut Output, stop: &Stop) -> Result<u64> {
    input.drain(stop, |_, bytes| to.write(bytes))
}

/// Makes the file `name` of what a stream brings, in place of a file that has it. Returns the number of bytes.
pub(super) fn receive<D: Tree>(
    mut input: Input,
    to: &D,
    dir: D::Node,
    name: &[u8],
    around: &Surroundings<'_>,
) -> Result<u64> {
    let dir = Rc::new(dir);
    let old = match to.child(&dir, name)? {
        Some(old) => Some(around.replaced(to, &old, FileKind::Regular)?),
        None => None,
    };
    let temporary = temporary_name();
    let new = New { shown_as: Some(name), ..New::file(0o600) };
    let copy = to.make(&dir, &temporary, new)?;
    let attributes = around.keep.attributes(FileKind::Regular, 0o666, old.as_ref());
    let filled = input.drain(around.stop, |at, bytes| to.write(&copy, at, bytes)).and_then(|bytes| {
        attributes.set(to, &copy)?;
        Ok(bytes)
    });
    let bytes = filled.inspect_err(|_| {
        // The first error matters more than one of removing the useless copy.
        let _ = to.unlink(&dir, &temporary);
    })?;
    let mut stage = Stage::new(to, Rc::clone(&dir));
    stage.add(Waiting::File { dir, temporary, name: name.to_vec(), node: copy }, bytes);
    stage.publish()?.into_iter().try_for_each(|outcome| outcome.result)?;
    Ok(bytes)
}
