//! `moafs lab list`: the experiments, drives and parameters there are.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use moafs_disk::model::{DriveSpec, spec};
use moafs_lab::experiment;
use moafs_lab::parameters::Parameters;
use serde::Serialize;

use crate::error::Result;
use crate::output;

/// List the experiments, with the paper's figure and finding, the drives, and what can be set
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab list
  moafs lab list --json")]
pub(crate) struct ListArgs {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Everything {
    experiments: Vec<Entry>,
    drives: Vec<Named>,
    parameters: Vec<Named>,
}

#[derive(Serialize)]
struct Entry {
    id: &'static str,
    title: &'static str,
    figure: &'static str,
    paper: &'static str,
}

#[derive(Serialize)]
struct Named {
    name: String,
    meaning: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
}

impl ListArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let everything = everything();
        if self.json {
            output::json(&everything)?;
        } else {
            output::print(text(&everything).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn everything() -> Everything {
    let entry = |e: &experiment::Experiment| Entry { id: e.id, title: e.title, figure: e.figure, paper: e.paper };
    let drive = |name: &str| {
        let meaning = DriveSpec::preset(name).map(|spec| spec.description().to_owned()).unwrap_or_default();
        Named { name: name.to_owned(), meaning, default: None }
    };
    let defaults = Parameters::default().show();
    let parameter = |(name, meaning): (&str, String)| Named {
        name: name.to_owned(),
        meaning,
        default: defaults.get(name).cloned(),
    };
    Everything {
        experiments: experiment::all().into_iter().map(entry).collect(),
        drives: spec::names().map(drive).collect(),
        parameters: Parameters::known().map(parameter).collect(),
    }
}

fn text(all: &Everything) -> String {
    let mut text = String::from("Experiments (moafs lab run ID…):\n");
    for entry in &all.experiments {
        let _ = writeln!(text, "  {:<16} {} ({})", entry.id, entry.title, entry.figure);
    }
    text += "\nDrives (--set drives=NAME,…):\n";
    for drive in &all.drives {
        let _ = writeln!(text, "  {:<24} {}", drive.name, drive.meaning);
    }
    text += "\nParameters (--set NAME=VALUE):\n";
    for parameter in &all.parameters {
        let default = parameter.default.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {:<12} {} [{default}]", parameter.name, parameter.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_name_and_a_meaning() {
        let all = everything();
        assert!(all.experiments.iter().all(|e| !e.title.is_empty() && !e.paper.is_empty() && !e.figure.is_empty()));
        assert!(all.drives.iter().chain(&all.parameters).all(|named| !named.meaning.is_empty()));
        let text = text(&all);
        for name in ["cw-postmark", "mpg3307at-as-published", "write_cache"] {
            assert!(text.contains(name), "{name}");
        }
    }
}
