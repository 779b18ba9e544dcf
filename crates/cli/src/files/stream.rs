//! Contents without a place of their own: `-`, `/dev/stdin`, `/dev/stdout`, pipes and terminals.
//!
//! They are read and written once, from beginning to end. A file that is made of them appears under its name when all
//! of it is there, as every copy does ([`super::stage`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

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
/// Longest wait for input, or for room, before a look at the signals: a tenth of a second.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

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
            // A pipe without a writer is waited for where signals are seen.
            _ => File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(fail())?,
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
            if let Ok(0) | Err(Errno::INTR) = poll(&mut fds, Some(&WAIT)) {
                continue;
            }
            match self.file.read(into) {
                Err(error) if is_to_be_repeated(&error) => {}
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
    /// A pipe is waited for until it has a reader.
    pub(super) fn of(path: &Path, stop: &Stop) -> Result<Option<Output>> {
        let fail = || CliError::host("opening", path);
        let file = match path.as_os_str().as_bytes() {
            b"-" | b"/dev/stdout" | b"/dev/fd/1" | b"/proc/self/fd/1" => return Ok(Some(Output::Standard)),
            b"/dev/stderr" | b"/dev/fd/2" | b"/proc/self/fd/2" => {
                File::from(io::stderr().as_fd().try_clone_to_owned().map_err(fail())?)
            }
            _ if !is_stream(path) => return Ok(None),
            _ => open_for_reader(path, stop)?,
        };
        Ok(Some(Output::Other { file, shown: output::path(path) }))
    }

    fn write(&mut self, bytes: &[u8], stop: &Stop) -> Result<()> {
        let Output::Other { file, shown } = self else { return output::print(bytes) };
        let mut left = bytes;
        while !left.is_empty() {
            stop.check()?;
            let mut fds = [PollFd::new(&*file, PollFlags::OUT)];
            if let Ok(0) | Err(Errno::INTR) = poll(&mut fds, Some(&WAIT)) {
                continue;
            }
            match file.write(left) {
                Ok(0) => return Err(fail_writing(shown, io::ErrorKind::WriteZero.into())),
                Ok(len) => left = &left[len..],
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(fail_writing(shown, error)),
            }
        }
        Ok(())
    }
}

fn fail_writing(shown: &str, error: io::Error) -> CliError {
    CliError::HostFile { what: "writing", at: shown.to_owned(), error }
}

/// Returns true if there was nothing to be read, or no room, after all.
fn is_to_be_repeated(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Opens a destination for writing. A pipe without a reader is waited for where signals are seen.
fn open_for_reader(path: &Path, stop: &Stop) -> Result<File> {
    loop {
        stop.check()?;
        match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_pipe(path) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            opened => return opened.map_err(CliError::host("opening", path)),
        }
    }
}

fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
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
        to.write(&chunk[..len], stop)?;
        at += len as u64;
        stop.check()?;
    }
}

/// Writes what a stream brings to another one. Returns the number of bytes.
pub(super) fn pass_on(mut input: Input, to: &mut Output, stop: &Stop) -> Result<u64> {
    input.drain(stop, |_, bytes| to.write(bytes, stop))
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
