//! Measurements with a limit of their own: memory of the daemon, mounting a huge volume, large
//! directories.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::round::{Measured, Round};
use crate::sequential;
use crate::system::{System, Volume};

/// Cache budgets of the memory workload, in bytes, with the name of the metric.
const BUDGETS: [(&str, u64); 2] = [("memory-64M", 64 << 20), ("memory-256M", 256 << 20)];
/// Bytes that the daemon may use beyond its budget.
const BEYOND_BUDGET_BYTES: u64 = 64 << 20;
/// Small files of the memory workload.
const MEMORY_FILES: u64 = 30_000;
/// Bytes of a volume.
const VOLUME_BYTES: u64 = 4 << 30;
/// Bytes of the huge volume.
const HUGE_BYTES: u64 = 1 << 40;
/// Files of the large directory, and of each of the small ones that it is compared with.
const LARGE_DIRECTORY: u64 = 100_000;
const SMALL_DIRECTORY: u64 = 1_000;
/// Small directories: several, for a time that can be trusted.
const SMALL_DIRECTORIES: u64 = 10;

/// Measures moafs, and ext4 for the metrics that have a meaning there.
pub(crate) fn measure(round: &mut Round<'_>) -> Result<()> {
    for (metric, budget) in BUDGETS {
        memory(round, metric, budget)?;
    }
    for system in round.shuffled(vec![System::Moafs, System::Ext4]) {
        huge_volume(round, system)?;
    }
    for system in round.shuffled(vec![System::Moafs, System::Ext4]) {
        large_directory(round, system)?;
    }
    Ok(())
}

/// Measures the largest resident memory of the daemon during the workload, as a share of budget +
/// 64 MiB.
fn memory(round: &mut Round<'_>, metric: &'static str, budget: u64) -> Result<()> {
    let mut volume = Volume::prepare(round.setup, round.backing, System::Moafs)?;
    volume.format(VOLUME_BYTES)?;
    volume.set_options(format!("cache={budget}"));
    volume.mount()?;
    let large_bytes = round.scale.of(2 * (budget >> 20)) << 20;
    strain(&volume, round.scale.of(MEMORY_FILES), large_bytes)?;
    let pid = volume.stats()?["pid"].as_u64().unwrap_or(0);
    let peak = peak_resident_bytes(pid)?;
    let share = peak as f64 / (budget + BEYOND_BUDGET_BYTES) as f64;
    round.keep_value(Measured { metric, clients: 1, system: System::Moafs }, share, "1", peak);
    Ok(())
}

/// Creates many small files, writes and reads a file of `large_bytes` bytes, and removes half of
/// the small files.
fn strain(volume: &Volume, files: u64, large_bytes: u64) -> Result<()> {
    let small = Directory::make(&volume.dir, "small", files)?;
    let large = volume.dir.join("large");
    for path in &small.files {
        volume.interrupt().check()?;
        std::fs::write(path, [0x5a; 4096]).map_err(BenchError::host("writing", path))?;
    }
    sequential::write(&large, large_bytes, false, volume.interrupt())?;
    sequential::drop_pages(&large)?;
    sequential::read(&large, large_bytes, volume.interrupt())?;
    for path in small.files.iter().step_by(2) {
        volume.interrupt().check()?;
        std::fs::remove_file(path).map_err(BenchError::host("removing", path))?;
    }
    volume.settle()
}

/// Reads `VmHWM` of a process, in bytes.
fn peak_resident_bytes(pid: u64) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let status = std::fs::read_to_string(&path).map_err(BenchError::host("reading", &path))?;
    let missing = || BenchError::program("moafs", format!("{} shows no VmHWM", path.display()));
    kib_of(&status, "VmHWM:").map(|kib| kib << 10).ok_or_else(missing)
}

fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Mounts a sparse volume of 1 TiB and measures the time, and the bytes that moafs read for it.
fn huge_volume(round: &mut Round<'_>, system: System) -> Result<()> {
    let mut volume = Volume::prepare(round.setup, round.backing, system)?;
    volume.format_sparse(HUGE_BYTES)?;
    let elapsed = volume.mount()?;
    let measured = |metric| Measured { metric, clients: 1, system };
    round.keep_value(measured("mount-1T"), elapsed.as_secs_f64(), "s", 1);
    if system == System::Moafs {
        let (requests, bytes) = reads(&volume.stats()?["disk"]);
        round.keep_value(measured("mount-1T-reads"), requests as f64, "requests", bytes);
    }
    Ok(())
}

/// Returns the read requests and the bytes read, from the disk's counters.
fn reads(disk: &Value) -> (u64, u64) {
    let counts = disk["counts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum =
        |field: &str| counts.iter().filter(|count| count["verb"] == "read").filter_map(|c| c[field].as_u64()).sum();
    (sum("requests"), sum("bytes"))
}

/// Measures the rates in one large directory as a share of those in small ones.
fn large_directory(round: &mut Round<'_>, system: System) -> Result<()> {
    let mut volume = Volume::new(round.setup, round.backing, system, VOLUME_BYTES)?;
    let (small, large) = (round.scale.of(SMALL_DIRECTORY), round.scale.of(LARGE_DIRECTORY));
    let small = (0..SMALL_DIRECTORIES).map(|number| Directory::make(&volume.dir, &format!("small-{number}"), small));
    let small = small.collect::<Result<Vec<_>>>()?;
    let large = [Directory::make(&volume.dir, "large", large)?];
    let mut rates = Vec::new();
    for directories in [&small[..], &large[..]] {
        let create = rate(directories, |directory| directory.create(volume.interrupt()))?;
        volume.settle()?;
        volume.remount_cold()?;
        let orders = directories.iter().map(|directory| round.shuffled(directory.files.iter().collect()));
        let orders: Vec<Vec<&PathBuf>> = orders.collect();
        let mut order = orders.iter();
        let find = rate(directories, |_| find_all(order.next().map_or(&[], Vec::as_slice), volume.interrupt()))?;
        let miss = rate(directories, |directory| directory.miss(volume.interrupt()))?;
        rates.push([create, find, miss]);
    }
    let count = large[0].files.len() as u64;
    for (index, metric) in ["directory-create", "directory-find", "directory-miss"].into_iter().enumerate() {
        let share = rates[1][index] / rates[0][index];
        round.keep_value(Measured { metric, clients: 1, system }, share, "1", count);
    }
    Ok(())
}

/// Returns files per second, over all directories together.
fn rate(directories: &[Directory], mut work: impl FnMut(&Directory) -> Result<Duration>) -> Result<f64> {
    let files: usize = directories.iter().map(|directory| directory.files.len()).sum();
    let times = directories.iter().map(&mut work).collect::<Result<Vec<_>>>()?;
    Ok(files as f64 / times.iter().sum::<Duration>().as_secs_f64().max(1e-9))
}

/// A directory, and the files that are or will be in it.
struct Directory {
    files: Vec<PathBuf>,
    missing: Vec<PathBuf>,
}

impl Directory {
    fn make(parent: &Path, name: &str, count: u64) -> Result<Directory> {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).map_err(BenchError::host("making", &dir))?;
        let names = |prefix: &str| (0..count).map(|number| dir.join(format!("{prefix}-{number:06}"))).collect();
        Ok(Directory { files: names("file"), missing: names("none") })
    }

    /// Makes every file, empty.
    fn create(&self, interrupt: &Interrupt) -> Result<Duration> {
        let start = Instant::now();
        for path in &self.files {
            interrupt.check()?;
            let made: std::io::Result<File> = OpenOptions::new().write(true).create_new(true).open(path);
            made.map_err(BenchError::host("making", path))?;
        }
        Ok(start.elapsed())
    }

    /// Looks up names that do not exist.
    fn miss(&self, interrupt: &Interrupt) -> Result<Duration> {
        let start = Instant::now();
        for path in &self.missing {
            interrupt.check()?;
            if path.symlink_metadata().is_ok() {
                return Err(BenchError::program("look-up", format!("{} is there", path.display())));
            }
        }
        Ok(start.elapsed())
    }
}

/// Looks every file up.
fn find_all(files: &[&PathBuf], interrupt: &Interrupt) -> Result<Duration> {
    let start = Instant::now();
    for path in files {
        interrupt.check()?;
        path.symlink_metadata().map_err(BenchError::host("looking up", path))?;
    }
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_taken_from_the_status() {
        let status = "Name:\tmoafs\nVmPeak:\t  999 kB\nVmHWM:\t   1234 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(kib_of(status, "VmHWM:"), Some(1234));
        assert_eq!(kib_of(status, "VmSwap:"), None);
        assert!(peak_resident_bytes(u64::from(std::process::id())).unwrap() > 0);
    }

    #[test]
    fn only_reads_are_counted() {
        let disk = serde_json::json!({"counts": [
            {"verb": "read", "requests": 2, "bytes": 8192},
            {"verb": "write", "requests": 5, "bytes": 4096},
            {"verb": "read", "requests": 1, "bytes": 4096},
        ]});
        assert_eq!(reads(&disk), (3, 12288));
        assert_eq!(reads(&Value::Null), (0, 0));
    }

    #[test]
    fn directories_are_made_searched_and_missed() {
        let dir = tempfile::tempdir().unwrap();
        let directories = [Directory::make(dir.path(), "a", 5).unwrap()];
        let interrupt = Interrupt::default();
        assert!(rate(&directories, |directory| directory.create(&interrupt)).unwrap() > 0.0);
        find_all(&directories[0].files.iter().collect::<Vec<_>>(), &interrupt).unwrap();
        directories[0].miss(&interrupt).unwrap();
        assert!(find_all(&directories[0].missing.iter().collect::<Vec<_>>(), &interrupt).is_err());
    }
}
