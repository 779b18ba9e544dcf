//! `moafs lab`: experiments on modelled disks. One module per subcommand, in `lab/`.

mod age;
mod diff;
mod list;
mod peers;
mod replay;
mod report;
mod run;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::error::Result;

/// Run experiments on modelled disks, in virtual time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs lab list                                what there is
  moafs lab run --scale 0.1                     the papers' experiments, small
  moafs lab age --utilization 30 old.img        an aged volume
  sudo moafs lab peers --scale 0.2              ext4, xfs, btrfs and moafs on the same modelled disk
  moafs lab replay --model st3160812as trace.csv   a trace on a modelled drive
  moafs lab report results                      kept results, rendered again
  moafs lab diff old new                        what differs, and whether by more than chance

`moafs lab COMMAND --help` tells more about each.")]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    List(list::ListArgs),
    Run(run::RunArgs),
    Age(age::AgeArgs),
    Peers(peers::PeersArgs),
    Replay(replay::ReplayArgs),
    Report(report::ReportArgs),
    Diff(diff::DiffArgs),
}

impl LabArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            LabCommand::List(args) => args.run(),
            LabCommand::Run(args) => args.run(),
            LabCommand::Age(args) => args.run(),
            LabCommand::Peers(args) => args.run(),
            LabCommand::Replay(args) => args.run(),
            LabCommand::Report(args) => args.run(),
            LabCommand::Diff(args) => args.run(),
        }
    }
}
