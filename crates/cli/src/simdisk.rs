//! `moafs simdisk`: a modelled disk for any file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use moafs_mount::serve::check_target;
use moafs_mount::size;
use moafs_simdisk::{Model, Pace, SimDisk, serve};

use crate::error::{CliError, Result};
use crate::mount;

/// The range of `--paced`: beyond it the wall's clock is too coarse, or nothing ever ends.
const FACTORS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// Put any file system on a modelled disk
///
/// DIR gets one file, `disk`, that a loop device can sit on. Bytes are stored for real, in memory;
/// every request is timed by the model of a drive, and counted in DIR/stats (JSON). Unpaced,
/// modelled time runs only while the drive works, and everything is as fast as this machine; with
/// --paced, replies are held back so that the kernel sees the drive's time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs simdisk --model st3160812as --size 8G /run/sim
  dev=$(sudo losetup --find --show --direct-io=on /run/sim/disk)
  echo mq-deadline | sudo tee /sys/block/${dev#/dev/}/queue/scheduler
  echo 128 | sudo tee /sys/block/${dev#/dev/}/queue/max_sectors_kb    the drive's largest transfer
  sudo mkfs.ext4 $dev && sudo mount $dev /mnt
  sudo cp -r /usr/include /mnt && sync -f /mnt && sudo cat /run/sim/stats
  sudo umount /mnt; sudo losetup -d $dev; sudo moafs umount /run/sim

`moafs lab peers` does this for several file systems. Modelled time is defined in docs/simdisk.md.")]
pub(crate) struct SimdiskArgs {
    /// Directory to serve the disk in
    dir: PathBuf,
    /// A drive: a name, or the path of a description (an unknown name lists what there is)
    #[arg(short, long, value_name = "NAME")]
    model: String,
    /// Use only so much of it, from its start (default: all)
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Set a parameter of the model, such as cache.write=false
    #[arg(long, value_name = "PARAMETER=VALUE")]
    set: Vec<String>,
    /// Hold replies back: modelled time is wall time x FACTOR
    #[arg(long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", value_parser = factor)]
    paced: Option<f64>,
    /// Keep the bytes in this image file instead of memory
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// List every command in this CSV file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Stay in the foreground until it is unmounted (or SIGINT, SIGTERM arrives)
    #[arg(short, long)]
    foreground: bool,
    /// Run as the daemon of a disk, and report on standard output when it can be used
    #[arg(long, hide = true)]
    daemon: bool,
}

/// Parses a factor of `--paced`.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| FACTORS.contains(factor));
    factor.ok_or_else(|| format!("give a number from {} to {}, as in --paced=1", FACTORS.start(), FACTORS.end()))
}

impl SimdiskArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let dir = check_target(&self.dir).map_err(|error| CliError::Target { path: self.dir.clone(), error })?;
        let disk = self.disk()?;
        if self.daemon {
            mount::detach_from_terminal();
            // Every path is absolute by now, and a daemon must not keep a directory busy.
            let root = Path::new("/");
            std::env::set_current_dir(root).map_err(CliError::host("entering", root))?;
        } else if !self.foreground {
            return run_in_background();
        }
        let tell = || mount::become_silent(true);
        let served = if self.daemon { serve(&disk, &dir, tell) } else { serve(&disk, &dir, || {}) };
        served.map_err(|error| CliError::SimDisk { dir, error })?;
        Ok(ExitCode::SUCCESS)
    }

    fn disk(&self) -> Result<SimDisk> {
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(CliError::host("finding", path));
        Ok(SimDisk {
            model: Model::load(&self.model, &self.set).map_err(|error| CliError::Usage(error.to_string()))?,
            bytes: self.size,
            pace: self.paced.map_or(Pace::Unpaced, Pace::Paced),
            image: self.image.as_ref().map(absolute).transpose()?,
            trace: self.trace.as_ref().map(absolute).transpose()?,
        })
    }
}

/// Starts the same command again, as a daemon; returns when it is ready.
fn run_in_background() -> Result<ExitCode> {
    let fail = |error: io::Error| CliError::Host { what: "starting", path: "the daemon".into(), error };
    let mut command = Command::new(std::env::current_exe().map_err(fail)?);
    // Placed behind the command's own name: later, a `--` might make it a directory.
    command.args(["simdisk", "--daemon"]).args(std::env::args_os().skip(2)).stdin(Stdio::null()).stdout(Stdio::piped());
    mount::wait_until_ready(&mut command.spawn().map_err(fail)?)
}
