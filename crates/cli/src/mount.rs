//! `moafs mount`, and the helper that mount(8) calls for `mount -t fuse.moafs`.
//!
//! In the background the mount is served by this same program, run again with `--daemon`: nothing is forked after
//! threads were started. The daemon writes one line to its standard output when the mount can be used; until then
//! its errors go to our standard error, and its exit code becomes ours.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::{Args, Parser};
use moafs_disk::DiskError;
use moafs_disk::file::FileOptions;
use moafs_mount::confine::confine;
use moafs_mount::limits;
use moafs_mount::option_list;
use moafs_mount::options::PartBytes;
use moafs_mount::remount::{self, Remount};
use moafs_mount::source::Source;
use moafs_mount::swap::memory::become_io_flusher;
use moafs_mount::{Mounting, Settings, serve};

use crate::error::{CliError, Result};
use crate::layout;
use crate::output;
use crate::partition::{self, Part};
use crate::stat::of_mount;
use crate::trace_file::TraceFile;
use crate::volume::{self, Opened, Volume, on_volume};

/// Line that the daemon writes when the mount can be used.
const READY: &str = "ready";

/// Exit code of mount(8) for internal errors.
const INTERNAL_FAILURE: u8 = 32;

/// Mount a volume
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct MountArgs {
    /// Image file or block device; IMAGE@2, IMAGE@LABEL or IMAGE@UUID for one of its partitions
    image: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options, separated by commas (see below)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount read-only (as -o ro)
    #[arg(short, long)]
    read_only: bool,
    /// Stay in the foreground until it is unmounted (or SIGINT, SIGTERM arrives)
    #[arg(short, long)]
    foreground: bool,
    /// List every request to the device in this file, for `moafs lab replay`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Run as the daemon of a mount, and report on standard output when it can be used
    #[arg(long, hide = true)]
    daemon: bool,
    /// True if mount(8) calls: its list of options is complete.
    #[arg(skip)]
    by_mount8: bool,
}

const MOUNT_EXAMPLES: &str = "\
Examples:
  sudo moafs mount disk.img /mnt
  sudo moafs mount -o noatime,cache=1G /dev/sdb1 /mnt
  sudo moafs mount -r raspios.img@2 /mnt        the second partition of an image
  moafs mount -o fakeroot rootfs.img ~/mnt      without root, with the rights of root on the volume
  sudo moafs mount -o remount,ro disk.img /mnt  other options for what is mounted there
  sudo mount -t fuse.moafs disk.img /mnt        after `moafs helpers --install`";

/// The beginning of the manual page; the help is to fit on one screen.
const DESCRIPTION: &str = "\
IMAGE is an image file or a block device. As root the mount is of type fuseblk, so that sync(1) and umount(8) wait \
until everything is on the volume; an image file gets a loop device for that. Without root, or with -o plain, it is of \
type fuse: unmount it with `moafs umount`, which also waits.";

fn help() -> String {
    let options = moafs_mount::options::summary();
    format!("{MOUNT_EXAMPLES}\n\n{options}\nThe page moafs-mount(1) and docs/mount.md explain them.")
}

/// Returns the command as its manual page has it: with the meanings of all options.
pub(crate) fn in_full(command: clap::Command) -> clap::Command {
    let options = moafs_mount::options::manual();
    command.long_about(DESCRIPTION).after_long_help(format!("{MOUNT_EXAMPLES}\n\n{options}"))
}

impl MountArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.mount().map_err(CliError::of_mount)
    }

    fn mount(self) -> Result<ExitCode> {
        if remount::is_asked_for(self.lists()) {
            return self.remount();
        }
        let settings = self.settings()?;
        let target =
            serve::check_target(&self.dir).map_err(|error| CliError::Target { path: self.dir.clone(), error })?;
        let (file, choice) = partition::split(&self.image);
        let source = Source::of(&file)?;
        let image = partition::join(source.path(), choice.as_deref());
        if self.daemon {
            detach_from_terminal();
            return run_here(&image, source, target, settings, self.trace.as_deref(), || become_silent(true));
        }
        if self.foreground {
            return run_here(&image, source, target, settings, self.trace.as_deref(), || {});
        }
        self.run_in_background(&image, &target)
    }

    /// Returns the `-o` lists, and what `-r` stands for.
    fn lists(&self) -> impl Iterator<Item = &str> {
        self.options.iter().map(String::as_str).chain(self.read_only.then_some("ro"))
    }

    fn settings(&self) -> Result<Settings> {
        Ok(Settings::parse(self.lists(), rustix::process::geteuid().is_root())?)
    }

    /// Changes the options of the mount at the directory. As for the mounts of the kernel, the source does not matter.
    fn remount(&self) -> Result<ExitCode> {
        let fail = |error| CliError::Target { path: self.dir.clone(), error };
        let target = serve::check_target(&self.dir).map_err(fail)?;
        let kept = if self.by_mount8 { Vec::new() } else { remount::current(&target).map_err(fail)? };
        let lists = kept.iter().copied().chain(self.lists());
        let remount = Remount::parse(lists, rustix::process::geteuid().is_root())?;
        let stats = of_mount(&target)?;
        let given = stats["options"].as_array().into_iter().flatten().filter_map(|option| option.as_str());
        let given: Vec<String> = given.map(str::to_owned).collect();
        let remount = remount.of_volume(&given, stats["read_only"] == true)?;
        remount.carry_out(&target).map_err(CliError::host("remounting", &target))?;
        Ok(ExitCode::SUCCESS)
    }

    fn run_in_background(&self, image: &Path, target: &Path) -> Result<ExitCode> {
        let fail = |error| CliError::Host { what: "starting", path: "the daemon".into(), error };
        let mut command = Command::new(std::env::current_exe().map_err(fail)?);
        command.args(["mount", "--daemon"]).stdin(Stdio::null()).stdout(Stdio::piped()).current_dir("/");
        for list in self.lists() {
            command.args(["-o", list]);
        }
        if let Some(trace) = &self.trace {
            // The path must be absolute: the daemon runs in `/`.
            command.arg("--trace").arg(std::path::absolute(trace).map_err(CliError::host("finding", trace))?);
        }
        wait_until_ready(&mut command.arg("--").arg(image).arg(target).spawn().map_err(fail)?)
    }
}

/// Waits until a daemon says that it is ready, or ends: then its exit code is ours, and it has
/// printed the reason.
pub(crate) fn wait_until_ready(daemon: &mut Child) -> Result<ExitCode> {
    let fail = |error| CliError::Host { what: "starting", path: "the daemon".into(), error };
    let mut line = String::new();
    if let Some(status) = daemon.stdout.take() {
        BufReader::new(status).read_line(&mut line).map_err(fail)?;
    }
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = daemon.wait().map_err(fail)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0);
    Err(CliError::Daemon { code: code.unwrap_or(INTERNAL_FAILURE) })
}

/// Opens the volume, mounts it, and serves it until it is unmounted. `image` is the source with the choice of a
/// partition.
fn run_here(
    image: &Path,
    source: Source,
    target: PathBuf,
    mut settings: Settings,
    trace_to: Option<&Path>,
    ready: impl FnOnce(),
) -> Result<ExitCode> {
    limits::lift();
    // Before any thread is started: all of them may one day stand between the kernel and memory it
    // frees. Without the right to be one, everything works but `moafs swap`, which says so.
    become_io_flusher();
    confine_unless_told(&settings);
    let claim = source.claim()?;
    let opened = open_source(image, &mut settings)?;
    let first_byte = opened.first_byte;
    let traced = trace_to.map(|path| TraceFile::start(&opened.trace, path)).transpose()?;
    let any = volume::open_volume(image, opened, settings.volume.clone(), &settings.format)?;
    let engine = any.engine_counters();
    on_volume!(any, |volume| {
        let Volume { vfs, disk: volume_disk, trace, latency, .. } = volume;
        let disk = Box::new(move || {
            let mut counters = serde_json::to_value(trace.counters()).unwrap_or_default();
            let spent = latency.as_ref().map(|latency| latency.spent()).unwrap_or_default();
            counters["latencies"] = serde_json::to_value(spent).unwrap_or_default();
            counters
        });
        let layout = layout::maker(vfs.clone());
        let mounting = Mounting { vfs, volume_disk, source, first_byte, claim, target, settings, disk, engine, layout };
        serve::serve(mounting, ready)
    })
    .map_err(CliError::serve(image))?;
    traced.map_or(Ok(()), TraceFile::end)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives up the rights that serving does not need. A daemon of an ordinary user has none to give up, and needs
/// `fusermount3`, which is set-user-id.
fn confine_unless_told(settings: &Settings) {
    if settings.no_sandbox || !rustix::process::geteuid().is_root() {
        return;
    }
    if let Err(error) = confine() {
        output::complain(&format!("giving up privileges: {error}"));
    }
}

/// Opens the image or device: read-only if it is write-protected.
fn open_source(image: &Path, settings: &mut Settings) -> Result<Opened> {
    match open_unclaimed(image, settings) {
        Err(error) if may_fall_back(&error, settings) => {
            settings.volume.read_only = true;
            let opened = open_unclaimed(image, settings)?;
            eprintln!("moafs: WARNING: source write-protected, mounted read-only.");
            Ok(opened)
        }
        opened => opened,
    }
}

/// Opens it without a claim, which is held already, and taken over by the kernel where it mounts the device.
fn open_unclaimed(image: &Path, settings: &Settings) -> Result<Opened> {
    let options = volume::file_options(&settings.volume, settings.host_cache);
    let part = settings.part.map_or(Part::OnlyVolume, |PartBytes { offset, len }| Part::Bytes { offset, len });
    volume::open_part(image, FileOptions { claim_device: false, ..options }, &part)
}

/// Decides as mount(8) does: write-protected sources are mounted read-only, unless `rw` was asked
/// for in words.
fn may_fall_back(error: &CliError, settings: &Settings) -> bool {
    let is_protected =
        matches!(error, CliError::Disk(DiskError::Open { errno: libc::EROFS | libc::EACCES | libc::EPERM, .. }));
    is_protected && !settings.volume.read_only && !settings.given.iter().any(|option| option == "rw")
}

/// Moves the process into a process group of its own: the terminal's signals are not for us any
/// more. Not a session of its own: where the scheduler groups tasks by session, a client of another
/// session is moved to another CPU by each answer, and a round trip takes about three times as long
/// (measured: 31,000 a second against 97,000).
pub(crate) fn detach_from_terminal() {
    // It fails only for leaders of a session, which have no terminal above them to detach from.
    let _ = rustix::process::setpgid(None, None);
}

/// Reports that the mount can be used, if `tell`, and replaces the inherited standard descriptors.
pub(crate) fn become_silent(tell: bool) {
    if tell {
        // The mount stands even if the reader of this line is gone.
        let _ = writeln!(io::stdout(), "{READY}").and_then(|()| io::stdout().flush());
    }
    let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    // Keeping a descriptor that cannot be replaced does no harm.
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// The arguments of a mount helper, as mount(8) documents them.
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.moafs", version, after_help = "Called by `mount -t fuse.moafs IMAGE DIR`.")]
pub(crate) struct HelperArgs {
    /// Image file or block device
    image: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check everything, mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Tolerate unknown options (accepted, but without effect: unknown options are errors)
    #[arg(short = 's')]
    _sloppy: bool,
    /// Do not write /etc/mtab (never done)
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Be verbose
    #[arg(short)]
    verbose: bool,
    /// Namespace, as mount(8) passes it on
    #[arg(short = 'N', value_name = "NAMESPACE")]
    _namespace: Option<String>,
    /// Type, as mount(8) passes it on
    #[arg(short = 't', value_name = "TYPE")]
    _fstype: Option<String>,
}

/// Runs as the helper that mount(8) calls: `mount.fuse.moafs IMAGE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
pub(crate) fn run_for_mount8(helper: HelperArgs) -> Result<ExitCode> {
    let args = MountArgs {
        image: helper.image,
        dir: helper.dir,
        options: without_default(helper.options),
        read_only: false,
        foreground: false,
        trace: None,
        daemon: false,
        by_mount8: true,
    };
    if helper.verbose {
        eprintln!("moafs: mounting {} on {}", crate::output::path(&args.image), crate::output::path(&args.dir));
    }
    if !helper.fake {
        return args.run();
    }
    args.settings()?;
    Source::of(&partition::split(&args.image).0)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes `rw`, which mount(8) passes on for every mount that is not to be read-only: it does not mean that a mount of
/// a write-protected source is to fail.
fn without_default(lists: Vec<String>) -> Vec<String> {
    let options: Vec<&str> = option_list::split(lists.iter().map(String::as_str)).collect();
    if options.iter().any(|option| matches!(*option, "ro" | "remount")) {
        return lists;
    }
    options.into_iter().filter(|option| *option != "rw").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rw_of_mount8_says_nothing() {
        let kept = |list: &str| without_default(vec![list.to_owned()]).join(",");
        assert_eq!(kept("rw,noatime,cache=64M"), "noatime,cache=64M");
        assert_eq!(kept("rw,context=\"a,rw\""), "context=\"a,rw\"");
        for list in ["ro,noatime", "ro,rw", "rw,remount"] {
            assert_eq!(kept(list), list);
        }
    }
}
