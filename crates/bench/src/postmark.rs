//! Debian's postmark: a pool of small files as a mail or news server has it, with random transactions on it (create
//! or delete a file, and read one or append to one).
//!
//! Its own clock counts whole seconds. So we read its output, and take the time of the transactions
//! between two of its lines.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::process;
use crate::round::{Measured, Round};
use crate::system::{System, Volume};

/// Files of the pool.
const FILES: u64 = 20_000;
/// Directories that the files lie in.
const SUBDIRECTORIES: u64 = 200;
/// Smallest and largest file, in bytes.
const FILE_BYTES: [u64; 2] = [512, 10_240];
/// Transactions of a run.
const TRANSACTIONS: u64 = 100_000;
/// fuse2fs is slow, and does this share of the transactions on the same pool. Rates are compared.
const FUSE2FS_SHARE: f64 = 0.1;
/// Bytes of a volume.
const VOLUME_BYTES: u64 = 4 << 30;
/// Time between two checks whether postmark has ended or should end.
const POLL: Duration = Duration::from_millis(20);

/// The parameters of a postmark run.
#[derive(Debug, Clone, Copy)]
struct Job {
    files: u64,
    subdirectories: u64,
    transactions: u64,
    seed: u32,
}

impl Job {
    fn script(&self, dir: &Path) -> String {
        let Job { files, subdirectories, transactions, seed } = self;
        let [smallest, largest] = FILE_BYTES;
        format!(
            "set location {}\nset number {files}\nset subdirectories {subdirectories}\nset size {smallest} {largest}\n\
             set transactions {transactions}\nset seed {seed}\nset report terse\nrun\nquit\n",
            dir.display()
        )
    }
}

/// The durations of the parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    transactions: Duration,
    /// Time to make the pool, do the transactions, and remove the pool.
    whole: Duration,
}

/// Measures moafs, ext4, the null file system and, where it is installed, fuse2fs.
pub(crate) fn measure(round: &mut Round<'_>) -> Result<()> {
    let mut systems = vec![System::Moafs, System::Ext4, System::Null];
    if process::is_installed("fuse2fs") {
        systems.push(System::Fuse2fs);
    } else {
        eprintln!("    fuse2fs is not installed: left out");
    }
    let seed = round.rng.random_range(1..=u32::from(u16::MAX));
    for system in round.shuffled(systems) {
        measure_system(round, system, seed)?;
    }
    Ok(())
}

fn measure_system(round: &mut Round<'_>, system: System, seed: u32) -> Result<()> {
    let scale = round.scale;
    let share = if system == System::Fuse2fs { FUSE2FS_SHARE } else { 1.0 };
    let transactions = ((scale.of(TRANSACTIONS) as f64 * share) as u64).max(1);
    let job = Job { files: scale.of(FILES), subdirectories: scale.of(SUBDIRECTORIES), transactions, seed };
    let volume = Volume::new(round.setup, round.backing, system, VOLUME_BYTES)?;
    let times = run(&job, &volume.dir, volume.interrupt())?;
    let measured = |metric| Measured { metric, clients: 1, system };
    round.keep_rate(measured("transactions"), job.transactions, "1/s", times.transactions);
    if system != System::Fuse2fs {
        round.keep_rate(measured("whole"), job.transactions + 2 * job.files, "1/s", times.whole);
    }
    Ok(())
}

/// Runs postmark in `dir`.
fn run(job: &Job, dir: &Path, interrupt: &Interrupt) -> Result<Times> {
    let failed = |problem: String| BenchError::program("postmark", problem);
    let mut script = tempfile::NamedTempFile::new().map_err(|error| failed(error.to_string()))?;
    std::io::Write::write_all(&mut script, job.script(dir).as_bytes()).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("postmark");
    command.arg(script.path()).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let stdout = child.stdout.take();
    let lines = std::thread::scope(|scope| {
        let reader = scope.spawn(move || stdout.map(timed_lines).unwrap_or_default());
        let ended = wait(&mut child, interrupt);
        let lines = reader.join().unwrap_or_default();
        ended.map(|()| lines)
    })?;
    times(&lines).ok_or_else(|| {
        let said: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        failed(format!("did not come to its end; it said: {}", said.join(" | ")))
    })
}

fn wait(child: &mut Child, interrupt: &Interrupt) -> Result<()> {
    loop {
        if let Err(stop) = interrupt.check() {
            // The process may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return Err(stop);
        }
        let ended = child.try_wait().map_err(|error| BenchError::program("postmark", error.to_string()))?;
        if ended.is_some() {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// Reads lines, each with the time at which it was complete.
fn timed_lines(stdout: ChildStdout) -> Vec<(Instant, String)> {
    let lines = BufReader::new(stdout).lines().map_while(|line| line.ok());
    lines.map(|line| (Instant::now(), line)).collect()
}

/// Returns the durations of the parts. postmark flushes its output when a part begins: the line of
/// the part before is then complete.
fn times(lines: &[(Instant, String)]) -> Option<Times> {
    let end_of = |part: &str| {
        let line = lines.iter().find(|(_, line)| line.starts_with(part) && line.ends_with("Done"));
        line.map(|(when, _)| *when)
    };
    let directories = end_of("Creating subdirectories")?;
    let pool = end_of("Creating files")?;
    let transactions = end_of("Performing transactions")?;
    let removed = end_of("Deleting files")?;
    Some(Times { transactions: transactions - pool, whole: removed - directories })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[(u64, &str)]) -> Vec<(Instant, String)> {
        let start = Instant::now();
        lines.iter().map(|(ms, line)| (start + Duration::from_millis(*ms), (*line).to_owned())).collect()
    }

    #[test]
    fn the_transactions_lie_between_two_lines() {
        let lines = said(&[
            (0, "PostMark v1.51 : 8/14/01"),
            (10, "Creating subdirectories...Done"),
            (110, "Creating files...Done"),
            (410, "Performing transactions..........Done"),
            (510, "Deleting files...Done"),
        ]);
        let expected = Times { transactions: Duration::from_millis(300), whole: Duration::from_millis(500) };
        assert_eq!(times(&lines), Some(expected));
    }

    #[test]
    fn a_run_that_broke_off_has_no_times() {
        assert_eq!(
            times(&said(&[(0, "Creating subdirectories...Done"), (5, "Creating files...Error: no space")])),
            None
        );
    }
}
