//! `moafs-bench`: compares moafs with other file systems, in the same run.
//!
//! The one idea: a time by itself says little on a machine that also does other work. So each round
//! measures all systems shortly after one another, in random (seeded) order, on the same kind of
//! backing; ratios are taken within a round; the report shows the median of these ratios over
//! rounds, with the least and the greatest. moafs and the null file system are run as the programs
//! that they are, from outside.
//!
//! Mounts, loop devices, daemons and files belong to guards that unmount and remove them, also after an error or ^C.
//!
//! | module | what it holds |
//! |---|---|
//! | `run` | rounds, suites, random order |
//! | `postmark`, `operations`, `sequential`, `limits` | the suites |
//! | `system`, `backing`, `process` | file systems under test, where their images lie, tools and daemons |
//! | `record`, `summary`, `report`, `machine` | from measurements to tables |
//! | `interrupt`, `error` | what ends a run early |

#![forbid(unsafe_code)]

mod backing;
mod error;
mod interrupt;
mod limits;
mod machine;
mod operations;
mod postmark;
mod process;
mod record;
mod report;
mod round;
mod run;
mod sequential;
mod summary;
mod system;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::backing::{Backing, BackingKind};
use crate::error::{BenchError, Result};
use crate::interrupt::Interrupt;
use crate::process::Programs;
use crate::record::Record;
use crate::round::{Scale, Suite};
use crate::run::Plan;
use crate::system::{Format, LoopMode, Setup};

/// Compare moafs with other file systems, in the same run.
#[derive(Debug, Parser)]
#[command(name = "moafs-bench", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(CompareArgs),
    Table(TableArgs),
}

/// Run the comparison (needs root: it mounts file systems)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo run --release -p moafs-bench -- compare --rounds 5 --out bench-runs/2026-01-31-laptop
  cargo run --release -p moafs-bench -- compare --format f2fs --backing tmpfs
  cargo run --release -p moafs-bench -- compare --scale 0.02 --rounds 1      to see whether it works
  cargo run --release -p moafs-bench -- compare --suite operations --backing tmpfs --rounds 15

Needs e2fsprogs, util-linux, postmark, f2fs-tools for --format f2fs and, for its comparison, fuse2fs.")]
struct CompareArgs {
    /// Rounds; ratios are taken within each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Decides the order of systems in every round, and postmark's choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kind of storage under the image files (default: both)
    #[arg(long, value_enum, value_delimiter = ',')]
    backing: Vec<BackingKind>,
    /// Suites to measure (default: everything)
    #[arg(long, value_enum, value_delimiter = ',')]
    suite: Vec<Suite>,
    /// Share of the full number of files, transactions and bytes, at most 1
    #[arg(long, default_value = "1", value_parser = scale)]
    scale: Scale,
    /// Directory in which image files of the disk backing and mount points are made
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Keep the result in this new directory: README.md and raw.csv
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Transport of moafs and of the null file system: auto, uring or dev
    #[arg(long, default_value = "auto")]
    transport: String,
    /// Format of moafs's volumes
    #[arg(long, value_enum, default_value_t = Format::Ext2)]
    format: Format,
    /// Mount options of moafs besides the transport
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    moafs_options: String,
    /// Use of its image by ext4's loop device: as `mount -o loop` does, or past the host's cache
    #[arg(long, value_enum, default_value_t = LoopMode::Buffered)]
    ext4_loop: LoopMode,
    /// The moafs to measure (default: built from this checkout)
    #[arg(long, value_name = "PROGRAM")]
    moafs: Option<PathBuf>,
    /// The null file system (default: built from this checkout)
    #[arg(long, value_name = "PROGRAM")]
    nullfs: Option<PathBuf>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

/// Print the tables of a kept run, or put them into a document
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo run --release -p moafs-bench -- table bench-runs/2026-01-31-laptop
  cargo run --release -p moafs-bench -- table bench-runs/2026-01-31-laptop --into docs/performance.md")]
struct TableArgs {
    /// The directory of the run
    run: PathBuf,
    /// Replace the tables between the marks of this document
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Print the rows as JSON
    #[arg(long, conflicts_with = "into")]
    json: bool,
}

fn scale(text: &str) -> Result<Scale, String> {
    let scale = text.parse().ok().filter(|scale| *scale > 0.0 && *scale <= 1.0);
    scale.map(Scale).ok_or_else(|| "give a number above 0, at most 1".to_owned())
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Compare(args) => args.run(),
        Command::Table(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moafs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

impl CompareArgs {
    fn run(self) -> Result<()> {
        self.check()?;
        let interrupt = Interrupt::catch()?;
        let started = machine::now();
        let programs = Programs::find(self.moafs.clone(), self.nullfs.clone())?;
        let setup = Rc::new(Setup {
            programs,
            transport: self.transport.clone(),
            format: self.format,
            moafs_options: self.moafs_options.clone(),
            ext4_loop: self.ext4_loop,
            interrupt,
            negotiated: RefCell::default(),
        });
        let kinds = or_all(&self.backing);
        let backings = kinds.iter().map(|kind| Backing::new(*kind, &self.dir)).collect::<Result<Vec<_>>>()?;
        let suites = or_all(&self.suite);
        let (rounds, seed, scale) = (self.rounds, self.seed, self.scale);
        let plan = Plan { setup: &setup, backings: &backings, suites: &suites, rounds, seed, scale };
        let mut records = Vec::new();
        let done = plan.run(&mut records);
        self.keep(&records, &setup, &backings, &started, &done)?;
        show(&records, self.json);
        done
    }

    /// Refuses early the options that could only fail late.
    fn check(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(BenchError::Usage("this mounts file systems: run it as root".to_owned()));
        }
        if let Some(out) = self.out.as_ref().filter(|out| out.exists()) {
            return Err(BenchError::Usage(format!("{} exists: give a new directory", out.display())));
        }
        let needed = ["mke2fs", "losetup"].into_iter();
        let postmark = or_all(&self.suite).contains(&Suite::Postmark).then_some("postmark");
        let mkfs = (self.format == Format::F2fs).then_some("mkfs.f2fs");
        let missing: Vec<&str> =
            needed.chain(mkfs).chain(postmark).filter(|program| !process::is_installed(program)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(BenchError::Usage(format!(
            "not in PATH: {} (Debian: e2fsprogs, mount, f2fs-tools, postmark)",
            missing.join(", ")
        )))
    }

    /// Writes README.md and raw.csv; for an interrupted run, writes the records so far and says so.
    fn keep(
        &self,
        records: &[Record],
        setup: &Setup,
        backings: &[Backing],
        started: &str,
        done: &Result<()>,
    ) -> Result<()> {
        let Some(out) = self.out.as_ref().filter(|_| !records.is_empty()) else { return Ok(()) };
        std::fs::create_dir_all(out).map_err(BenchError::host("making", out))?;
        let csv = out.join("raw.csv");
        let file = File::create(&csv).map_err(BenchError::host("making", &csv))?;
        record::write_csv(file, records).map_err(BenchError::host("writing", &csv))?;
        let readme = out.join("README.md");
        let text = self.readme(records, setup, backings, started, done);
        std::fs::write(&readme, text).map_err(BenchError::host("writing", &readme))
    }

    fn readme(
        &self,
        records: &[Record],
        setup: &Setup,
        backings: &[Backing],
        started: &str,
        done: &Result<()>,
    ) -> String {
        let rows = summary::rows(records);
        let mut text = String::from("# moafs compared\n\n");
        if done.is_err() {
            text += "**This run ended early**; the last round is incomplete.\n\n";
        }
        let mut facts = machine::describe();
        facts.push(("began", started.to_owned()));
        facts.push(("ended", machine::now()));
        facts.push((
            "scale",
            format!("{} of the numbers below; rounds: {}; seed: {}", self.scale.0, self.rounds, self.seed),
        ));
        let negotiated: Vec<String> = setup.negotiated.borrow().iter().cloned().collect();
        facts.push(("transport", format!("{}; negotiated: {}", self.transport, negotiated.join(", "))));
        facts.push(("volumes of moafs", name_of(self.format)));
        if !self.moafs_options.is_empty() {
            facts.push(("mount options of moafs", self.moafs_options.clone()));
        }
        facts.push(("ext4", format!("on a {} loop device", name_of(self.ext4_loop))));
        for backing in backings {
            let (kind, file_system) = (backing.kind.name(), backing.file_system());
            facts.push(("backing", format!("{kind}: sparse image files on {file_system}, alike for all systems")));
        }
        for (name, value) in facts {
            text += &format!("- {name}: {value}\n");
        }
        text +=
            "\nmoafs as a share of the others: median over rounds of the ratios within a round (least – greatest).\n\n";
        text + &report::tables(&rows) + "## What the rows mean\n\n" + &report::meanings(&rows)
    }
}

impl TableArgs {
    fn run(self) -> Result<()> {
        let records = record::read_csv(&self.run.join("raw.csv"))?;
        match &self.into {
            Some(document) => report::fill(document, &summary::rows(&records), &name_of_run(&self.run)),
            None => {
                show(&records, self.json);
                Ok(())
            }
        }
    }
}

/// Returns the last two parts of the run's path: the full path on the machine that kept it means
/// nothing elsewhere.
fn name_of_run(run: &Path) -> String {
    let parts: Vec<_> = run.iter().collect();
    let last: PathBuf = parts[parts.len().saturating_sub(2)..].iter().collect();
    last.display().to_string()
}

fn show(records: &[Record], json: bool) {
    let rows = summary::rows(records);
    if json {
        println!("{}", serde_json::json!(rows));
    } else {
        print!("{}", report::tables(&rows));
    }
}

/// Returns the values that were chosen; all values if none was.
fn or_all<T: ValueEnum + Clone>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}

/// Returns the name that the command line has for a value.
fn name_of<T: ValueEnum>(choice: T) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_scale_is_a_share() {
        assert!(scale("0.01").is_ok());
        assert!(["0", "-1", "2", "nan", "x"].iter().all(|text| scale(text).is_err()));
    }

    #[test]
    fn a_run_is_named_without_its_place() {
        assert_eq!(name_of_run(Path::new("/somewhere/bench-runs/2026-01-31-laptop")), "bench-runs/2026-01-31-laptop");
        assert_eq!(name_of_run(Path::new("run")), "run");
    }
}
