//! `moafs lab run`: runs experiments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::{Args, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use moafs_lab::Outcome;
use moafs_lab::experiment::{Lab, Progress, RunOptions};
use moafs_lab::experiments::select;
use moafs_lab::outcome::Row;
use moafs_lab::parameters::Parameters;
use moafs_lab::report;
use moafs_lab::seeds::combine;

use crate::error::Result;
use crate::output;

/// Most seeds of one run.
const SEEDS_MAX: i64 = 1000;
/// Longest interval between two moves of the bar.
const TICK: Duration = Duration::from_millis(200);
/// Metrics of a table on the terminal; all rows are in JSON and in the report.
pub(super) const SHOWN: [&str; 5] = ["bandwidth", "elapsed", "rate", "gain", "change"];

/// Run experiments: all, or those named
///
/// Cases (a system on a drive at a utilization) run on all cores. Same scale, seed and parameters: same numbers, to the
/// byte. The table shows the headline; JSON and the report (--out) show everything that was measured.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab run --scale 0.1                        everything, small: a minute
  moafs lab run cw-random-write --out report       one experiment at full size, report in report/
  moafs lab run cw-postmark --json > postmark.json
  moafs lab run cw-random-write --seeds 5 --out five   means of five seeds with 95 % intervals
  moafs lab run cw-seq-write --set cache=160M --set write_cache=off --set utilization=30

`moafs lab list` shows experiments, drives and parameters.")]
pub(crate) struct RunArgs {
    /// Experiments; none: all
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Scale; 1 is the size of the paper's experiment
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    scale: f64,
    /// Seed of everything random; of several, the first
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run with so many seeds, and print means with 95 % intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=SEEDS_MAX))]
    seeds: u32,
    /// Set a parameter of the experiments
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Cases at the same time; 0: as many as there are cores
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    jobs: usize,
    /// Write the report (HTML, CSV, JSON, pictures) into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the outcomes as JSON
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let experiments = select(&self.ids)?;
        let mut parameters = Parameters::default();
        self.set.iter().try_for_each(|assignment| parameters.set(assignment))?;
        let cores = available_parallelism().map_or(1, usize::from);
        let jobs = if self.jobs == 0 { cores } else { self.jobs };
        let bar = Bar::new();
        let mut of_seeds: Vec<Vec<Outcome>> = experiments.iter().map(|_| Vec::new()).collect();
        for seed in (0..u64::from(self.seeds)).map(|number| self.seed.wrapping_add(number)) {
            let options = RunOptions { scale: self.scale, seed, jobs, parameters: parameters.clone() };
            let lab = Lab::new(options, &bar)?;
            for (experiment, outcomes) in experiments.iter().zip(&mut of_seeds) {
                outcomes.push(lab.run(experiment)?);
            }
        }
        bar.bar.finish_and_clear();
        let told = |outcome: Outcome| {
            let command = self.command(&outcome.experiment);
            Outcome { commit: env!("MOAFS_COMMIT").to_owned(), command, ..outcome }
        };
        let outcomes: Vec<Outcome> = of_seeds.into_iter().map(combine).map(told).collect();
        if let Some(dir) = &self.out {
            report::write_dir(&outcomes, dir)?;
        }
        match (self.json, outcomes.as_slice()) {
            // One experiment is one object, as the documentation shows it; several are a list in one.
            (true, [outcome]) => output::json(outcome)?,
            (true, _) => output::json_list("outcomes", &outcomes)?,
            (false, _) => outcomes.iter().try_for_each(|outcome| output::print(table(outcome).as_bytes()))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the command that measures an experiment again.
    fn command(&self, experiment: &str) -> String {
        let mut command = format!("moafs lab run {experiment}");
        let mut add = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(command, " --{name} {value}");
        };
        if self.scale != 1.0 {
            add("scale", &self.scale);
        }
        if self.seed != 1 {
            add("seed", &self.seed);
        }
        if self.seeds != 1 {
            add("seeds", &self.seeds);
        }
        self.set.iter().for_each(|set| add("set", set));
        command
    }
}

/// Progress of all experiments in one bar, on terminals only.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new() -> Bar {
        let bar = if stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{prefix:16} [{bar:30}] {pos}/{len} {elapsed}  {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Bar { bar }
    }
}

impl Progress for Bar {
    fn begins(&self, experiment: &str, cases: usize) {
        self.bar.set_prefix(experiment.to_owned());
        self.bar.set_position(0);
        self.bar.set_length(cases as u64);
    }

    fn case_done(&self, case: &str) {
        self.bar.set_message(case.to_owned());
        self.bar.inc(1);
    }
}

/// Writes the headline of an outcome: a line for each condition, a column for each system.
fn table(outcome: &Outcome) -> String {
    let mut text = format!("{} — {} ({})\n", outcome.experiment, outcome.title, outcome.figure);
    if let Some(caution) = outcome.caution() {
        let _ = writeln!(text, "  {caution}");
    }
    let shown = SHOWN.iter().filter(|metric| {
        // If there is a bandwidth, elapsed time says the same.
        **metric != "elapsed" || !outcome.rows.iter().any(|row| row.metric == "bandwidth")
    });
    for metric in shown {
        table_of(outcome, metric, &mut text);
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "  * {note}");
    }
    text.push('\n');
    text
}

fn table_of(outcome: &Outcome, metric: &str, text: &mut String) {
    let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.metric == metric).collect();
    let Some(first) = rows.first() else { return };
    let mut systems: Vec<&str> = Vec::new();
    let mut lines: Vec<(String, BTreeMap<&str, String>)> = Vec::new();
    for row in &rows {
        if !systems.contains(&row.system.as_str()) {
            systems.push(&row.system);
        }
        let name = row.dimensions.values().map(String::as_str).collect::<Vec<_>>().join(" ");
        let interval = row.interval.map_or_else(String::new, |half| format!(" ± {half:.2}"));
        let number = match row.paper {
            Some(paper) => format!("{:.2}{interval} ({paper})", row.value),
            None => format!("{:.2}{interval}", row.value),
        };
        match lines.iter_mut().find(|(line, _)| *line == name) {
            Some((_, cells)) => drop(cells.insert(&row.system, number)),
            None => lines.push((name, BTreeMap::from([(row.system.as_str(), number)]))),
        }
    }
    let dimensions = first.dimensions.keys().map(String::as_str).collect::<Vec<_>>().join(" ");
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(dimensions.len());
    let _ = write!(text, "  {metric} in {} (paper)\n  {dimensions:<width$}", unit(&first.unit));
    for system in &systems {
        let _ = write!(text, " {system:>16}");
    }
    text.push('\n');
    for (name, cells) in lines {
        let _ = write!(text, "  {name:<width$}");
        for system in &systems {
            let _ = write!(text, " {:>16}", cells.get(system).map_or("-", String::as_str));
        }
        text.push('\n');
    }
}

fn unit(unit: &str) -> &str {
    if unit.is_empty() { "numbers" } else { unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_column_for_each_system() {
        let row = |system: &str, value: f64, paper| Row {
            system: system.to_owned(),
            dimensions: BTreeMap::from([("utilization".to_owned(), "30".to_owned())]),
            metric: "bandwidth".to_owned(),
            value,
            unit: "MB/s".to_owned(),
            paper,
            interval: None,
        };
        let rows = vec![row("ffs", 1.0, None), row("cowrite", 2.0, Some(3.0))];
        let text = table(&Outcome { experiment: "x".to_owned(), rows, ..Outcome::default() });
        let line = text.lines().find(|line| line.trim_start().starts_with("30")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["30", "1.00", "2.00", "(3)"]);
    }

    #[test]
    fn a_small_run_says_that_the_papers_numbers_are_not_of_its_size() {
        let row = Row { metric: "elapsed".to_owned(), paper: Some(1.0), interval: Some(0.5), ..Row::default() };
        let outcome = |scale| Outcome { scale, rows: vec![row.clone()], ..Outcome::default() };
        assert!(
            table(&outcome(0.1)).contains("Not comparable with the paper") && table(&outcome(0.1)).contains("± 0.50")
        );
        assert!(!table(&outcome(1.0)).contains("Not comparable"));
    }
}
