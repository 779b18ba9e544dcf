//! The command `moafs`: makes, mounts, checks and shows volumes, and works on them without mounting.
//!
//! The one idea: every command is a module with its arguments, its help and its `run`; what they share (opening a
//! volume, paths, sizes, output) stands beside them. The same binary answers to `mount.fuse.moafs`, `mkfs.moafs` and
//! `fsck.moafs`, so that mount(8), mkfs(8) and fsck(8) find it.
//!
//! | module | what it holds |
//! |---|---|
//! | `mkfs`, `fsck`, `mount`, `umount`, `helpers` | commands in the manner of util-linux and e2fsprogs |
//! | `tune` | changing a volume that is not mounted: label, UUID, reserve, a journal |
//! | `defrag` | moving scattered files together, on a mount or without one |
//! | `swap` | the kernel swaps to a mounted volume |
//! | `info`, `map`, `stat`, `top` | looking at volumes and mounts |
//! | `files` | `ls`, `find`, `cat`, `cp`, `mv`, `rm` and their like: files of a volume without mounting it |
//! | `simdisk`, `lab` | a modelled disk for any file system, and experiments on such disks |
//! | `generate` | man pages and completions from the definition of all these |
//! | `latency`, `trace_file` | the times of the device's requests; the requests of a mount, in a file |
//! | `format_name` | the formats of volumes, told apart by their first bytes |
//! | `partition` | choosing a partition of a disk |
//! | `holder`, `mounted` | the holder of an image that is in use, and the place where it is mounted |
//! | `control`, `job`, `question`, `layout` | the control files of a mount; jobs of a mount's daemon; what is asked about the layout, and the answer |
//! | `identity` | the UUID that a command gives a volume |
//! | `owner` | the owner of what a command makes |
//! | `time` | times as people read them, as JSON has them, and as they are typed |
//! | `volume`, `place`, `output`, `stop`, `error` | what they share |

#![allow(clippy::result_large_err, reason = "an error ends the command: its size does not matter")]

mod control;
mod defrag;
mod error;
mod escape;
mod files;
mod format_name;
mod fsck;
mod generate;
mod helpers;
mod holder;
mod identity;
mod info;
mod job;
mod lab;
mod latency;
mod layout;
mod map;
mod mkfs;
mod mount;
mod mounted;
mod output;
mod owner;
mod partition;
mod place;
mod question;
mod simdisk;
mod stat;
mod stop;
mod swap;
mod time;
mod top;
mod trace_file;
mod tune;
mod umount;
mod volume;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Result;

/// Real ext2 and F2FS volumes in user space: make, mount, check, look at, and work on them with or without mounting.
#[derive(Debug, Parser)]
#[command(name = "moafs", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  moafs mkfs disk.img 1G            make an ext4 volume in a (sparse) file of 1 GiB
  moafs mkfs -t f2fs flash.img 4G   make an F2FS volume; all commands work on both formats
  sudo moafs mount disk.img /mnt    mount it
  sudo moafs umount /mnt            unmount it, and wait until everything is written
  moafs fsck -n disk.img            check it, changing nothing
  moafs cp -r src disk.img:/src     copy into it without mounting or root

`moafs COMMAND --help` tells more about each command.";

#[derive(Debug, Subcommand)]
enum Command {
    Mkfs(mkfs::MkfsArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Fsck(fsck::FsckArgs),
    Tune(tune::TuneArgs),
    Defrag(defrag::DefragArgs),
    Swap(swap::SwapArgs),
    Info(info::InfoArgs),
    Map(map::MapArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    Ls(files::ls::LsArgs),
    Find(files::find::FindArgs),
    Cat(files::cat::CatArgs),
    Cp(files::cp::CpArgs),
    Get(files::cp::GetArgs),
    Put(files::cp::PutArgs),
    Mkdir(files::mkdir::MkdirArgs),
    Touch(files::touch::TouchArgs),
    Mv(files::mv::MvArgs),
    Ln(files::ln::LnArgs),
    Rm(files::rm::RmArgs),
    Chmod(files::chmod::ChmodArgs),
    Chown(files::chown::ChownArgs),
    Truncate(files::truncate::TruncateArgs),
    Du(files::du::DuArgs),
    Df(files::df::DfArgs),
    Simdisk(simdisk::SimdiskArgs),
    Lab(lab::LabArgs),
    Helpers(helpers::HelpersArgs),
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Command::Mkfs(args) => args.run(),
            Command::Mount(args) => args.run(),
            Command::Umount(args) => args.run(),
            Command::Fsck(args) => args.run(),
            Command::Tune(args) => args.run(),
            Command::Defrag(args) => args.run(),
            Command::Swap(args) => args.run(),
            Command::Info(args) => args.run(),
            Command::Map(args) => args.run(),
            Command::Stat(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Ls(args) => args.run(),
            Command::Find(args) => args.run(),
            Command::Cat(args) => args.run(),
            Command::Cp(args) => args.run(),
            Command::Get(args) => args.run(),
            Command::Put(args) => args.run(),
            Command::Mkdir(args) => args.run(),
            Command::Touch(args) => args.run(),
            Command::Mv(args) => args.run(),
            Command::Ln(args) => args.run(),
            Command::Rm(args) => args.run(),
            Command::Chmod(args) => args.run(),
            Command::Chown(args) => args.run(),
            Command::Truncate(args) => args.run(),
            Command::Du(args) => args.run(),
            Command::Df(args) => args.run(),
            Command::Simdisk(args) => args.run(),
            Command::Lab(args) => args.run(),
            Command::Helpers(args) => args.run(),
            Command::Generate(args) => args.run(Cli::command()),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let alias = arguments.first().and_then(|name| alias_of(Path::new(name)));
    if let Some(command) = alias.filter(|command| *command != "mount") {
        arguments.insert(1, command.into());
    }
    let outcome = match alias {
        Some("mount") => parsed("mount", mount::HelperArgs::try_parse_from(arguments)).map(mount::run_for_mount8),
        _ => {
            let command = arguments.get(1).and_then(|command| command.to_str()).unwrap_or_default().to_owned();
            if command == "find" {
                files::find::with_two_dashes(&mut arguments[2..]);
            }
            parsed(&command, Cli::try_parse_from(arguments)).map(|cli| cli.command.run())
        }
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(code) => return code,
    };
    outcome.unwrap_or_else(|error| {
        if !error.to_string().is_empty() && !error.is_broken_pipe() {
            output::complain(&error);
        }
        error.code()
    })
}

/// Returns the arguments of a command. Otherwise prints what was asked for, or is wrong, and returns the exit code.
fn parsed<T>(command: &str, arguments: Result<T, clap::Error>) -> Result<T, ExitCode> {
    arguments.map_err(|error| {
        // Nothing is left to do if the reader of the message has gone away.
        let _ = error.print();
        if error.use_stderr() { usage_code(command).into() } else { ExitCode::SUCCESS }
    })
}

/// Returns the exit code for arguments that are not understood, as mount(8), mke2fs(8) and fsck(8) have it.
fn usage_code(command: &str) -> u8 {
    match command {
        "mount" | "umount" | "mkfs" => 1,
        "fsck" => 16,
        _ => 2,
    }
}

fn alias_of(program: &Path) -> Option<&'static str> {
    let name = program.file_name()?.to_str()?;
    helpers::ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_arguments_end_commands_as_their_manuals_say() {
        let code = |command: &str| parsed(command, Cli::try_parse_from(["moafs", command, "--no-such-option"])).err();
        for (command, expected) in [("mount", 1), ("umount", 1), ("mkfs", 1), ("fsck", 16), ("ls", 2), ("nothing", 2)] {
            assert_eq!(code(command), Some(ExitCode::from(expected)), "{command}");
        }
        assert_eq!(parsed("fsck", Cli::try_parse_from(["moafs", "fsck", "--help"])).err(), Some(ExitCode::SUCCESS));
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_after_help().is_some(), "{} has no examples", command.get_name());
        }
    }

    #[test]
    fn system_tools_find_their_command() {
        assert_eq!(alias_of(Path::new("/sbin/mount.fuse.moafs")), Some("mount"));
        assert_eq!(alias_of(Path::new("mkfs.moafs")), Some("mkfs"));
        assert_eq!(alias_of(Path::new("/usr/bin/moafs")), None);
    }
}
