//! `moafs umount`: unmounts a volume and waits until its image is released.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use moafs_runtime::Live;

use crate::error::Result;
use crate::partition;

/// Unmount a volume and wait until its image is released
///
/// The command returns after everything is on the volume: the image may then be moved, copied or
/// mounted elsewhere. A mount whose daemon was killed is cleared as well.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs umount /mnt
  sudo moafs umount disk.img        wherever it is mounted
  sudo moafs umount --lazy /mnt     although programs still use it; ends when they do

Exit code: 0 unmounted and released, 32 otherwise.")]
pub(crate) struct UmountArgs {
    /// Directory that the volume is mounted on, or its image or device
    dir: PathBuf,
    /// Take a busy mount out of the tree now, and do not wait
    #[arg(short, long)]
    lazy: bool,
    /// Wait this long for the image to be released
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl UmountArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let timeout = Duration::from_secs(self.timeout);
        let (target, _) = partition::split(&self.dir);
        moafs_mount::unmount::unmount(&target, self.lazy, timeout, &Live::new())?;
        Ok(ExitCode::SUCCESS)
    }
}
