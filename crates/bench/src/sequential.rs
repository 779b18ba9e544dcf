//! One large file, written and read with calls of 1 MiB.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Advice;

use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::process;
use crate::round::{Measured, Round};
use crate::system::{System, Volume};

/// Bytes of one call.
const CALL_BYTES: usize = 1 << 20;
/// Bytes of the large file: less than the default cache, more than its limit of dirty data.
const FILE_BYTES: u64 = 128 << 20;
/// Bytes of a burst: small enough that every system can put off writing it.
const BURST_BYTES: u64 = 32 << 20;
/// Bursts of a measurement, each to a new file.
const BURSTS: u64 = 4;
/// Bytes of a volume.
const VOLUME_BYTES: u64 = 2 << 30;

/// A measurement; each uses the file that the one before left.
#[derive(Debug, Clone, Copy)]
enum Pass {
    /// Several new files, each short enough to be put off.
    WriteBurst,
    /// A new file, longer than moafs puts off.
    Write,
    /// A new file, written and then synced with fsync.
    WriteSync,
    /// Pages dropped from the kernel's cache, not from the file system's own.
    ReadWarm,
    /// The volume is freshly mounted, with nothing in any cache.
    ReadCold,
}

const PASSES: [Pass; 5] = [Pass::WriteBurst, Pass::Write, Pass::WriteSync, Pass::ReadWarm, Pass::ReadCold];

impl Pass {
    fn metric(self) -> &'static str {
        match self {
            Pass::WriteBurst => "write-burst",
            Pass::Write => "write",
            Pass::WriteSync => "write-fsync",
            Pass::ReadWarm => "read-warm",
            Pass::ReadCold => "read-cold",
        }
    }

    /// Returns the metric of bytes per second of the daemon's CPU time; `None` for a pass of
    /// several files.
    fn cpu_metric(self) -> Option<&'static str> {
        match self {
            Pass::WriteBurst => None,
            Pass::Write => Some("write-cpu"),
            Pass::WriteSync => Some("write-fsync-cpu"),
            Pass::ReadWarm => Some("read-warm-cpu"),
            Pass::ReadCold => Some("read-cold-cpu"),
        }
    }
}

/// Measures every pass on moafs, the null file system and ext4.
pub(crate) fn measure(round: &mut Round<'_>) -> Result<()> {
    let make = |system| Volume::new(round.setup, round.backing, system, VOLUME_BYTES);
    let volumes = [System::Moafs, System::Null, System::Ext4].map(make);
    let mut volumes = volumes.into_iter().collect::<Result<Vec<_>>>()?;
    let sizes = Sizes { file: whole_calls(round, FILE_BYTES), burst: whole_calls(round, BURST_BYTES) };
    for pass in PASSES {
        for volume in round.shuffled(volumes.iter_mut().collect()) {
            let (bytes, cost) = sizes.run(volume, pass)?;
            let of = |metric| Measured { metric, clients: 1, system: volume.system };
            round.keep_rate(of(pass.metric()), bytes, "B/s", cost.elapsed);
            if let (Some(metric), Some(cpu)) = (pass.cpu_metric(), cost.cpu) {
                round.keep_rate(of(metric), bytes, "B/s", cpu);
            }
            volume.settle()?;
        }
    }
    Ok(())
}

/// Returns a size at the round's scale, in whole calls.
fn whole_calls(round: &Round<'_>, bytes: u64) -> u64 {
    round.scale.of(bytes / CALL_BYTES as u64) * CALL_BYTES as u64
}

/// The cost of a measurement: its time and its CPU time.
struct Cost {
    elapsed: Duration,
    /// CPU time of the daemon, until it had nothing left to write.
    cpu: Option<Duration>,
}

impl Cost {
    /// Measures the cost of `work`, which returns its own duration.
    fn of(volume: &Volume, work: impl FnOnce() -> Result<Duration>) -> Result<Cost> {
        let daemon = volume.daemon()?;
        let used = || daemon.map(process::cpu_time).transpose();
        let before = used()?;
        let elapsed = work()?;
        volume.settle()?;
        let cpu = used()?.zip(before).map(|(after, before)| after.saturating_sub(before));
        Ok(Cost { elapsed, cpu })
    }
}

/// The sizes of the files in bytes.
struct Sizes {
    file: u64,
    burst: u64,
}

impl Sizes {
    /// Runs one measurement and returns the bytes moved and their cost.
    fn run(&self, volume: &mut Volume, pass: Pass) -> Result<(u64, Cost)> {
        let large = volume.dir.join("large");
        let cost = match pass {
            Pass::WriteBurst => return self.bursts(volume),
            Pass::Write | Pass::WriteSync => {
                remove(&large)?;
                volume.settle()?;
                let sync = matches!(pass, Pass::WriteSync);
                Cost::of(volume, || write(&large, self.file, sync, volume.interrupt()))?
            }
            Pass::ReadWarm => {
                drop_pages(&large)?;
                read(&large, self.file, volume.interrupt())?;
                drop_pages(&large)?;
                Cost::of(volume, || read(&large, self.file, volume.interrupt()))?
            }
            Pass::ReadCold => {
                // The null file system stays mounted and loses the kernel's pages only.
                drop_pages(&large)?;
                volume.remount_cold()?;
                Cost::of(volume, || read(&large, self.file, volume.interrupt()))?
            }
        };
        Ok((self.file, cost))
    }

    fn bursts(&self, volume: &Volume) -> Result<(u64, Cost)> {
        let mut elapsed = Duration::ZERO;
        for number in 0..BURSTS {
            let path = volume.dir.join(format!("burst-{number}"));
            elapsed += write(&path, self.burst, false, volume.interrupt())?;
            volume.settle()?;
            remove(&path)?;
        }
        Ok((self.burst * BURSTS, Cost { elapsed, cpu: None }))
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(BenchError::host("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Makes a file and fills it. Returns the time that took, close included.
pub(crate) fn write(path: &Path, bytes: u64, sync: bool, interrupt: &Interrupt) -> Result<Duration> {
    let failed = |what| BenchError::host(what, path);
    // No two 4 KiB blocks of a call are alike, and none is zero.
    let call: Vec<u8> = (0..CALL_BYTES).map(|at| (at / 4096 + at + 1) as u8).collect();
    let start = Instant::now();
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed("making"))?;
    for _ in 0..bytes / CALL_BYTES as u64 {
        interrupt.check()?;
        file.write_all(&call).map_err(failed("writing"))?;
    }
    if sync {
        file.sync_all().map_err(failed("syncing"))?;
    }
    drop(file);
    Ok(start.elapsed())
}

/// Reads a file from its start and returns the time that took.
pub(crate) fn read(path: &Path, bytes: u64, interrupt: &Interrupt) -> Result<Duration> {
    let failed = |what| BenchError::host(what, path);
    let mut call = vec![0; CALL_BYTES];
    let start = Instant::now();
    let mut file = File::open(path).map_err(failed("opening"))?;
    for _ in 0..bytes / CALL_BYTES as u64 {
        interrupt.check()?;
        file.read_exact(&mut call).map_err(failed("reading"))?;
    }
    Ok(start.elapsed())
}

/// Drops a file's pages from the kernel's cache.
pub(crate) fn drop_pages(path: &Path) -> Result<()> {
    let failed = |what| BenchError::host(what, path);
    let file = File::open(path).map_err(failed("opening"))?;
    file.sync_all().map_err(failed("syncing"))?;
    let dropped = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    dropped.map_err(BenchError::host("dropping cached pages of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let bytes = 3 * CALL_BYTES as u64;
        write(&path, bytes, true, &Interrupt::default()).unwrap();
        assert_eq!(path.metadata().unwrap().len(), bytes);
        drop_pages(&path).unwrap();
        read(&path, bytes, &Interrupt::default()).unwrap();
        assert!(read(&path, bytes + CALL_BYTES as u64, &Interrupt::default()).is_err());
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
