//! `moafs generate`: man pages and completions, from the definition of the command line itself.
//!
//! The examples and the exit codes that `--help` shows become sections of their own.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::{CliError, Result};
use crate::mount;

/// Shells that completions are written for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// The name of the program.
const PROGRAM: &str = "moafs";
/// Beginning of the paragraph of `--help` that lists exit codes.
const EXIT_CODES: &str = "Exit code";

/// Write man pages or completions into a directory, for packages
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs generate man /usr/local/share/man/man1
  moafs generate completions build/completions")]
pub(crate) struct GenerateArgs {
    what: What,
    /// Directory, made if it does not exist
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// A page for each command: moafs.1, moafs-mount.1, …
    Man,
    /// moafs.bash, _moafs (zsh), moafs.fish
    Completions,
}

impl GenerateArgs {
    /// Writes the files for the command line `cli`.
    pub(crate) fn run(self, mut cli: Command) -> Result<ExitCode> {
        fs::create_dir_all(&self.dir).map_err(CliError::host("making", &self.dir))?;
        match self.what {
            What::Man => {
                let mut cli = cli.disable_help_subcommand(true).mut_subcommand("mount", mount::in_full);
                cli.build();
                man_pages(&cli, &self.dir)?;
            }
            What::Completions => {
                for shell in SHELLS {
                    let written = clap_complete::generate_to(shell, &mut cli, PROGRAM, &self.dir);
                    written.map_err(CliError::host("writing completions into", &self.dir))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the pages of a command and of the commands below it.
fn man_pages(command: &Command, dir: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        man_pages(below, dir)?;
    }
    let path = dir.join(Man::new(command.clone()).get_filename());
    let written = File::create(&path).and_then(|mut file| man_page(command, &mut file));
    written.map_err(CliError::host("writing", &path))
}

fn man_page(command: &Command, to: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("moafs");
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(to)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(to)?;
    }
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    to.write_all(sections(&help.map(ToString::to_string).unwrap_or_default()).as_bytes())?;
    writeln!(to, ".SH \"SEE ALSO\"\n{}", see_also(command.get_name()))
}

/// Returns the text behind the options as sections: paragraphs that begin with a head line, and the exit codes.
fn sections(help: &str) -> String {
    let mut page = String::new();
    for paragraph in help.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let body = match first.strip_suffix(':') {
            _ if first.starts_with(EXIT_CODES) => {
                page += ".SH \"EXIT STATUS\"\n";
                paragraph
            }
            Some(head) if !rest.is_empty() && !head.starts_with(' ') => {
                page += &format!(".SH \"{}\"\n", escaped(&head.to_uppercase()));
                rest
            }
            _ => {
                page += if page.is_empty() { ".SH NOTES\n" } else { ".PP\n" };
                paragraph
            }
        };
        page += &format!(".nf\n{}.fi\n", body.lines().map(|line| escaped(line) + "\n").collect::<String>());
    }
    page
}

/// Returns a line as roff shows it unchanged.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

fn see_also(name: &str) -> &'static str {
    match name {
        PROGRAM => ".BR mount (8),\n.BR mke2fs (8),\n.BR mkfs.f2fs (8),\n.BR fstab (5)",
        "mount" => ".BR moafs (1),\n.BR mount (8),\n.BR fstab (5),\n.BR fuse (4)",
        "umount" => ".BR moafs (1),\n.BR umount (8)",
        "mkfs" => ".BR moafs (1),\n.BR mke2fs (8),\n.BR mkfs.f2fs (8)",
        "fsck" => ".BR moafs (1),\n.BR fsck (8),\n.BR e2fsck (8),\n.BR fsck.f2fs (8)",
        _ => ".BR moafs (1)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_and_exit_codes_become_sections() {
        let page = sections("Examples:\n  moafs x -n \\ 'a'\n.dot\n\nA paragraph.\n\nExit code: 0 done,\n1 not.");
        assert_eq!(
            page,
            ".SH \"EXAMPLES\"\n.nf\n  moafs x \\-n \\e 'a'\n\\&.dot\n.fi\n.PP\n.nf\nA paragraph.\n.fi\n\
             .SH \"EXIT STATUS\"\n.nf\nExit code: 0 done,\n1 not.\n.fi\n"
        );
        assert_eq!(sections(""), "");
    }
}
