//! Single operations on small files, with 1 and 2 client threads, each in a directory of its own.
//!
//! All systems are mounted at once, and each operation is measured on one after the other, in
//! random order: other load of the machine hits neighbours in time alike. Put-off writes are
//! settled between measurements, untimed.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::round::{Measured, Round};
use crate::system::{System, Volume};

/// Files of each client.
const FILES: u64 = 8_000;
/// Bytes of a file.
const FILE_BYTES: usize = 4096;
/// Bytes of a volume.
const VOLUME_BYTES: u64 = 2 << 30;

/// An operation, done to every file in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    OpenRead,
    Overwrite,
    Stat,
    RoundTrip,
    Unlink,
}

/// The operations in the order of measuring: each uses the files that the one before left.
const OPERATIONS: [Operation; 6] = [
    Operation::Create,
    Operation::OpenRead,
    Operation::Overwrite,
    Operation::Stat,
    Operation::RoundTrip,
    Operation::Unlink,
];

impl Operation {
    fn metric(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::OpenRead => "open-read",
            Operation::Overwrite => "overwrite",
            Operation::Stat => "stat",
            Operation::RoundTrip => "stat-forced",
            Operation::Unlink => "unlink",
        }
    }

    /// Returns the number of passes over the files: quick operations need more for a time that can
    /// be trusted.
    fn passes(self) -> u64 {
        match self {
            Operation::Create | Operation::Unlink | Operation::Overwrite => 1,
            Operation::OpenRead => 4,
            Operation::RoundTrip => 2,
            Operation::Stat => 10,
        }
    }

    fn apply(self, dir: &File, name: &CString, buffer: &mut [u8]) -> Result<(), Errno> {
        match self {
            Operation::Create => write_all(dir, name, OFlags::CREATE | OFlags::EXCL, buffer),
            Operation::Overwrite => write_all(dir, name, OFlags::TRUNC, buffer),
            Operation::OpenRead => read_all(dir, name, buffer),
            Operation::Stat => stat(dir, name, AtFlags::empty()),
            Operation::RoundTrip => stat(dir, name, AtFlags::STATX_FORCE_SYNC),
            Operation::Unlink => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
        }
    }
}

/// Opens with `flags`, writes `data`, closes.
fn write_all(dir: &File, name: &CString, flags: OFlags, data: &[u8]) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o644);
    let file = rustix::fs::openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC | flags, mode)?;
    if rustix::io::write(&file, data)? == data.len() { Ok(()) } else { Err(Errno::NOSPC) }
}

/// Opens, reads one buffer, closes.
fn read_all(dir: &File, name: &CString, buffer: &mut [u8]) -> Result<(), Errno> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let wanted = buffer.len();
    if rustix::io::read(&file, buffer)? == wanted { Ok(()) } else { Err(Errno::IO) }
}

fn stat(dir: &File, name: &CString, flags: AtFlags) -> Result<(), Errno> {
    rustix::fs::statx(dir.as_fd(), name, flags, StatxFlags::BASIC_STATS).map(drop)
}

/// A client's directory and the names in it.
struct Client {
    path: PathBuf,
    dir: File,
    names: Vec<CString>,
}

impl Client {
    fn new(volume: &Volume, name: &str, files: u64) -> Result<Client> {
        let path = volume.dir.join(name);
        std::fs::create_dir(&path).map_err(BenchError::host("making", &path))?;
        let dir = File::open(&path).map_err(BenchError::host("opening", &path))?;
        Ok(Client { path, dir, names: (0..files).map(file_name).collect() })
    }

    /// Applies the operation to every file, `passes` times, and returns the times of its begin and
    /// end.
    fn apply(&self, operation: Operation, passes: u64, interrupt: &Interrupt) -> Result<(Instant, Instant)> {
        let mut buffer = [0x5a; FILE_BYTES];
        let start = Instant::now();
        for _ in 0..passes {
            for name in &self.names {
                interrupt.check()?;
                let done = operation.apply(&self.dir, name, &mut buffer);
                done.map_err(BenchError::host(operation.metric(), &self.path))?;
            }
        }
        Ok((start, Instant::now()))
    }
}

fn file_name(number: u64) -> CString {
    let digits = format!("file-{number:06}");
    // Letters and digits: there is no NUL that could be refused.
    CString::new(digits).unwrap_or_default()
}

/// Runs all clients at the same time and returns the time from the first one's start to the last
/// one's end.
fn apply_together(clients: &[Client], operation: Operation, passes: u64, interrupt: &Interrupt) -> Result<Duration> {
    let barrier = Barrier::new(clients.len());
    let spans: Vec<Result<(Instant, Instant)>> = std::thread::scope(|scope| {
        let start = |client| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                Client::apply(client, operation, passes, interrupt)
            })
        };
        let threads: Vec<_> = clients.iter().map(start).collect();
        let panicked = || BenchError::program(operation.metric(), "a client thread panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    let spans = spans.into_iter().collect::<Result<Vec<_>>>()?;
    let first = spans.iter().map(|(start, _)| *start).min();
    let last = spans.iter().map(|(_, end)| *end).max();
    Ok(first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first))
}

/// Measures every operation on moafs, the null file system and ext4.
pub(crate) fn measure(round: &mut Round<'_>) -> Result<()> {
    let make = |system| Volume::new(round.setup, round.backing, system, VOLUME_BYTES);
    let volumes = [System::Moafs, System::Null, System::Ext4].map(make);
    let volumes = volumes.into_iter().collect::<Result<Vec<_>>>()?;
    for count in [1, 2] {
        measure_clients(round, &volumes, count)?;
    }
    Ok(())
}

fn measure_clients(round: &mut Round<'_>, volumes: &[Volume], count: u32) -> Result<()> {
    let files = round.scale.of(FILES);
    let of_volume = |volume: &Volume| {
        let new = |number| Client::new(volume, &format!("clients-{count}-{number}"), files);
        (0..count).map(new).collect::<Result<Vec<Client>>>()
    };
    let clients = volumes.iter().map(of_volume).collect::<Result<Vec<_>>>()?;
    for operation in OPERATIONS {
        for (volume, clients) in round.shuffled(volumes.iter().zip(&clients).collect()) {
            let interrupt = volume.interrupt();
            if operation == Operation::OpenRead {
                // An untimed pass first, so that every page is cached.
                apply_together(clients, operation, 1, interrupt)?;
            }
            let elapsed = apply_together(clients, operation, operation.passes(), interrupt)?;
            let measured = Measured { metric: operation.metric(), clients: count, system: volume.system };
            let done = files * operation.passes() * u64::from(count);
            round.keep_rate(measured, done, "1/s", elapsed);
            volume.settle()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_finds_what_the_one_before_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(dir.path()).unwrap();
        let names = (0..3).map(file_name).collect();
        let clients = [Client { path: dir.path().to_owned(), dir: file, names }];
        for operation in OPERATIONS {
            let elapsed = apply_together(&clients, operation, operation.passes(), &Interrupt::default()).unwrap();
            assert!(elapsed > Duration::ZERO);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_failing_client_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(dir.path()).unwrap();
        let clients = [Client { path: dir.path().to_owned(), dir: file, names: vec![file_name(1)] }];
        assert!(apply_together(&clients, Operation::Stat, 1, &Interrupt::default()).is_err());
    }
}
