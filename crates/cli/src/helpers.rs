//! `moafs helpers`: the names under which mount(8), mkfs(8) and fsck(8) look for us.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::error::{CliError, Result};
use crate::output;

/// The names under which system tools call us, and the command each stands for.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("mount.fuse.moafs", "mount"),
    ("mount.fuseblk.moafs", "mount"),
    ("mount.moafs", "mount"),
    ("mkfs.moafs", "mkfs"),
    ("fsck.moafs", "fsck"),
];

/// Install the names that mount(8), mkfs(8) and fsck(8) look for
///
/// Makes symbolic links to this program: mount.fuse.moafs, mount.moafs, mkfs.moafs, fsck.moafs. Without --install or
/// --remove it lists those that exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs helpers --install                  then: mount -t fuse.moafs disk.img /mnt
  sudo moafs helpers --remove

A line of /etc/fstab:
  /srv/disk.img  /mnt  fuse.moafs  noatime,nofail  0  0")]
pub(crate) struct HelpersArgs {
    /// Make the links in the directory
    #[arg(long, conflicts_with = "remove")]
    install: bool,
    /// Remove the links from the directory
    #[arg(long)]
    remove: bool,
    /// Directory in which they are made
    #[arg(long, value_name = "DIR", default_value = "/sbin")]
    dir: PathBuf,
}

impl HelpersArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let program = std::env::current_exe().map_err(CliError::host("finding", Path::new("this program")))?;
        for (alias, _) in ALIASES {
            let link = self.dir.join(alias);
            match (self.install, self.remove) {
                (true, _) => install(&program, &link)?,
                (_, true) => remove(&link)?,
                _ => {}
            }
            let state = match fs::read_link(&link) {
                Ok(target) => format!("-> {}", output::path(&target)),
                Err(_) if link.exists() => "is a file of its own".to_owned(),
                Err(_) => "not installed".to_owned(),
            };
            output::print(format!("{} {state}\n", output::path(&link)).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn install(program: &Path, link: &Path) -> Result<()> {
    remove(link)?;
    symlink(program, link).map_err(CliError::host("linking", link))
}

/// Removes a link; never a file that is not one.
fn remove(link: &Path) -> Result<()> {
    match fs::symlink_metadata(link) {
        Ok(meta) if meta.is_symlink() => fs::remove_file(link).map_err(CliError::host("removing", link)),
        Ok(_) => Err(CliError::host("replacing", link)(io::Error::from(io::ErrorKind::AlreadyExists))),
        Err(_) => Ok(()),
    }
}
