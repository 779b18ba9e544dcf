//! `moafs swap`: the kernel swaps to a mounted volume.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use moafs_mount::control_path::{ControlPath, swapfile};
use moafs_mount::mount_table::{self, MountEntry};
use moafs_mount::size;
use moafs_mount::swap::device::{self, Active, DeviceError, PAGES_MIN, PRIORITY_MAX, page_bytes};
use moafs_mount::swap::{SWAP_NAME, SwapCommand, SwapPlace, SwapState, SwapStatus, SwapWish};
use moafs_swap::Placement;
use serde::Serialize;
use serde_json::Value;

use crate::error::{CliError, Result};
use crate::{control, output};

/// Interval at which the daemon is asked for its progress.
const POLL: Duration = Duration::from_millis(20);

/// Let the kernel swap to a mounted volume, next to the disk head
///
/// A page that leaves memory goes into a swap area in the group of the file that was read or
/// written last: the head is there already. The volume stays in normal use; the size is reserved
/// once, so a page-out never fails for want of space.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs swap on --size 2G /mnt         swap to the volume mounted at /mnt
  sudo moafs swap status /mnt               how much is out, and where it lies
  sudo moafs swap off /mnt                  bring everything back, and end it
  sudo moafs swap on --priority 10 /mnt     before swaps of lower priority

Needs root, a mount made by root, and loop devices. docs/swap.md tells how it works and what can go wrong.")]
pub(crate) struct SwapArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    On(OnArgs),
    Off(OffArgs),
    Status(StatusArgs),
}

/// Make a swap on the volume and have the kernel use it
///
/// Done step by step: the size is reserved on the volume, the daemon locks itself in memory, a loop
/// device is attached to DIR/.moafs/swapfile and gets a swap header, and the kernel is told
/// (swapon). If a step fails, those before it are undone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs swap on /mnt                   as large as memory, at most half of the volume's free space
  sudo moafs swap on --size 512M --priority 5 /mnt
  sudo moafs swap on --place areas /mnt     next to the files, even where no head moves
  sudo moafs swap on --place start /mnt     at the start of the volume, as a swap partition would be")]
struct OnArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// Bytes that can be paged out (default: as much as there is memory, at most half of the
    /// volume's free space)
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Swaps of higher priority are used first, from 0 to 32767 (default: the kernel's, below all others)
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=i64::from(PRIORITY_MAX)))]
    priority: Option<u16>,
    /// Place that pages go to
    #[arg(long, value_enum, default_value_t = Place::Auto)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Place {
    /// Into swap areas where a head has to move (or the host does not tell), else to the start
    Auto,
    /// Into swap areas next to the disk head
    Areas,
    /// To the lowest free addresses, as to a partition at the disk's start
    Start,
}

impl From<Place> for SwapPlace {
    fn from(place: Place) -> SwapPlace {
        match place {
            Place::Auto => SwapPlace::Auto,
            Place::Areas => SwapPlace::Areas,
            Place::Start => SwapPlace::Start,
        }
    }
}

/// Bring everything back into memory and end the swap
///
/// Also removes the rest of a `swap on` that was interrupted, or whose daemon was killed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs swap off /mnt && sudo moafs umount /mnt")]
struct OffArgs {
    /// A directory of the mount
    dir: PathBuf,
}

/// Show how much is paged out, and its place on the volume
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs swap status /mnt
  moafs swap status --json /mnt | jq .swap.areas")]
struct StatusArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

/// The status, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    status: SwapStatus,
    /// State of the swap in the kernel; `None` if the kernel does not use it.
    kernel: Option<Active>,
}

impl SwapArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            What::On(args) => args.run()?,
            What::Off(args) => args.run()?,
            What::Status(args) => args.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl OnArgs {
    fn run(self) -> Result<()> {
        let mount = Mount::of(&self.dir)?;
        must_be_root("swap on")?;
        let active = device::active().map_err(host)?;
        if active.is_none() {
            return Err(CliError::Usage("this kernel cannot swap (CONFIG_SWAP; there is no /proc/swaps)".to_owned()));
        }
        if mount.status()?.state != SwapState::Off {
            return Err(mount.problem("its swap is on already; `moafs swap off` ends it, `moafs swap status` shows it"));
        }
        let bytes = whole_pages(self.size.map_or_else(|| mount.default_bytes(), Ok)?)?;
        mount.command(&SwapCommand::On(SwapWish { bytes, place: self.place.into() }))?;
        let status = mount.settled()?;
        if status.state != SwapState::On {
            return Err(mount.problem(status.error.as_deref().unwrap_or("the daemon ended the swap at once")));
        }
        // From here on, a failure must undo the steps done.
        match device::swap_on(&mount.0.target, bytes, *uuid::Uuid::new_v4().as_bytes(), self.priority) {
            Ok(device) => {
                status.warnings.iter().for_each(|warning| eprintln!("moafs: warning: {warning}"));
                let size = output::size(bytes);
                output::print(format!("{size} of swap on {} ({})\n", mount.dir(), output::path(&device)).as_bytes())
            }
            Err(error) => {
                let undone = mount.end();
                Err(CliError::Usage(match undone {
                    Ok(()) => explained(&error),
                    Err(left) => format!("{}\nmoafs: undoing it: {left}", explained(&error)),
                }))
            }
        }
    }
}

impl OffArgs {
    fn run(self) -> Result<()> {
        let mount = Mount::of(&self.dir)?;
        must_be_root("swap off")?;
        let (active, _) = device::device_of(&mount.file()).map_err(host)?;
        if let Some(active) = &active {
            device::swap_off(&active.device).map_err(|error| match error.error.raw_os_error() {
                Some(libc::ENOMEM) => CliError::Usage(format!(
                    "{error}: {} are out, and memory does not hold them; end some programs, or add another swap first",
                    output::size(active.used)
                )),
                _ => host(error),
            })?;
        }
        let status = mount.status().map_err(|error| match active {
            Some(_) => CliError::Usage(format!(
                "the kernel does not swap to {dir} any more, but its daemon does not answer ({error}); \
                 `moafs umount {dir}` clears the mount",
                dir = mount.dir()
            )),
            None => error,
        })?;
        match (status.state, active) {
            (SwapState::Off, None) => Err(mount.problem("its swap is not on")),
            (SwapState::Off, Some(_)) => Ok(()),
            _ => mount.end(),
        }
    }
}

impl StatusArgs {
    fn run(self) -> Result<()> {
        let mount = Mount::of(&self.dir)?;
        let status = mount.status()?;
        let kernel = device::device_of(&mount.file()).map_err(host)?.0;
        if self.json {
            return output::json(&Report { status, kernel });
        }
        output::print(text(&status, kernel.as_ref()).as_bytes())
    }
}

/// A mount whose volume is swapped to.
struct Mount(MountEntry);

impl Mount {
    fn of(dir: &Path) -> Result<Mount> {
        let shown = output::path(dir);
        let none = || CliError::Usage(format!("{shown} lies in no mount of moafs: `moafs mount` the volume first"));
        mount_table::mount_of(dir).map(Mount).ok_or_else(none)
    }

    fn dir(&self) -> String {
        output::path(&self.0.target)
    }

    /// Returns the path of the file that the loop device sits on.
    fn file(&self) -> PathBuf {
        swapfile(&self.0.target)
    }

    fn control(&self) -> ControlPath {
        ControlPath::new(&self.0.target, SWAP_NAME)
    }

    fn problem(&self, problem: &str) -> CliError {
        CliError::Usage(format!("{}: {problem}", self.dir()))
    }

    fn status(&self) -> Result<SwapStatus> {
        control::read(&self.control())
    }

    fn command(&self, command: &SwapCommand) -> Result<()> {
        let control = self.control();
        let text = serde_json::to_vec(command).map_err(|error| CliError::Output(error.into()))?;
        let file = control.open_for_commands().map_err(|error| match error.raw_os_error() {
            Some(libc::EROFS) => self.problem("it is mounted read-only: pages cannot go there"),
            _ => CliError::host("opening", &control.path())(error),
        })?;
        file.write_all_at(&text, 0).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => self.problem("another `moafs swap` is at work there"),
            _ => CliError::host("commanding", &control.path())(error),
        })
    }

    /// Returns the status once the daemon is done with a command.
    fn settled(&self) -> Result<SwapStatus> {
        loop {
            let status = self.status()?;
            if !matches!(status.state, SwapState::Starting | SwapState::Stopping) {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Makes the daemon end a swap that the kernel does not use (any more).
    fn end(&self) -> Result<()> {
        if !device::wait_for_detach(&self.file()) {
            return Err(self.problem("a loop device still holds its swap file; `losetup -a` names it"));
        }
        self.command(&SwapCommand::Off)?;
        let status = self.settled()?;
        match status.error {
            Some(error) if status.state == SwapState::On => Err(self.problem(&error)),
            _ => Ok(()),
        }
    }

    /// Returns the default size: as much as there is memory, at most half of the free space.
    fn default_bytes(&self) -> Result<u64> {
        let memory = std::path::Path::new("/proc/meminfo");
        let text = std::fs::read_to_string(memory).map_err(CliError::host("reading", memory))?;
        let total =
            text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_ascii_whitespace().next()?.parse().ok());
        let total: u64 = total.unwrap_or(0) * 1024;
        let fail = |error: rustix::io::Errno| CliError::host("looking at", &self.0.target)(error.into());
        let space = rustix::fs::statvfs(&self.0.target).map_err(fail)?;
        Ok(total.min(space.f_bavail * space.f_frsize / 2))
    }
}

/// Rounds down to whole pages, and checks that they are enough for the kernel.
fn whole_pages(bytes: u64) -> Result<u64> {
    let page = page_bytes();
    let whole = bytes / page * page;
    if whole < PAGES_MIN * page {
        return Err(CliError::Usage(format!(
            "a swap of {} is too small: the kernel wants {} at least",
            output::size(bytes),
            output::size(PAGES_MIN * page)
        )));
    }
    if whole / page > u64::from(u32::MAX) {
        return Err(CliError::Usage(format!("a swap of {} is too large: 16 TiB are the most", output::size(bytes))));
    }
    Ok(whole)
}

fn must_be_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(CliError::Usage(format!("`{what}` changes what the kernel swaps to: only root may do that (try sudo)")))
}

fn host(error: DeviceError) -> CliError {
    CliError::Usage(error.to_string())
}

/// Describes a failed step, with its likely cause.
fn explained(error: &DeviceError) -> String {
    let hint = match error.error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => " (are there loop devices here? `modprobe loop`)",
        Some(libc::EPERM) => {
            " (CAP_SYS_ADMIN is needed; containers often lack it, or are limited in the number of swaps)"
        }
        Some(libc::ENOSYS) => " (this kernel cannot swap)",
        _ => "",
    };
    format!("{error}{hint}")
}

/// Writes the status as text for people.
fn text(status: &SwapStatus, kernel: Option<&Active>) -> String {
    let state = match status.state {
        SwapState::Off => "off",
        SwapState::Starting => "starting",
        SwapState::On => "on",
        SwapState::Stopping => "stopping",
    };
    let mut text = line("state", state);
    if let Some(error) = &status.error {
        text += &line("last error", error);
    }
    for warning in &status.warnings {
        text += &line("warning", warning);
    }
    let Some(swap) = &status.swap else { return text };
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pages = |value: &Value| output::size(number(value) * 4096);
    let counter = |name: &str| number(&swap["counters"][name]);
    let each = |pages: u64, requests: u64| format!("{:.1}", pages as f64 / requests.max(1) as f64);
    text += &line("size", &output::size(status.bytes));
    text += &match kernel {
        Some(kernel) => line(
            "kernel swaps to",
            &format!(
                "{}, priority {}, {} used",
                output::path(&kernel.device),
                kernel.priority,
                output::size(kernel.used)
            ),
        ),
        None => line("kernel swaps to", "nothing (`moafs swap off` removes the rest)"),
    };
    text += &line("pages go", pages_go(status.place, &swap["placement"]));
    text += &line("on the volume", &pages(&swap["used"]));
    text += &line("traditional swap space", &format!("{} of it", pages(&swap["traditional_used"])));
    let (out, requests) = (counter("pages_out"), counter("out_requests"));
    text += &line("pages out", &format!("{out} in {requests} requests, {} each", each(out, requests)));
    let (came, beside, requests) = (counter("pages_in"), counter("neighbours_in"), counter("in_requests"));
    text += &line(
        "pages in",
        &format!("{came}, and {beside} beside them, in {requests} requests, {} each", each(came + beside, requests)),
    );
    if let Some(seen) = &status.requests {
        text += &line(
            "requests of the kernel",
            &format!(
                "{}, {:.2} ms on average, {:.0} ms at most, {} slow",
                number(&seen["requests"]),
                seen["mean_ms"].as_f64().unwrap_or(0.0),
                seen["longest_ms"].as_f64().unwrap_or(0.0),
                number(&seen["slow"])
            ),
        );
    }
    let (made, back) = (counter("areas_made"), counter("areas_given_back"));
    text += &line("areas", &format!("{made} made, {back} given back, {} pages moved", counter("pages_migrated")));
    let areas = swap["areas"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !areas.is_empty() {
        text += &format!("\n{:>8} {:>12} {:>10} {:>10}\n", "group", "first block", "size", "used");
    }
    for area in areas {
        let leaving = if area["leaving"].as_bool() == Some(true) { "  gives way" } else { "" };
        text += &format!(
            "{:>8} {:>12} {:>10} {:>10}{leaving}\n",
            number(&area["group"]),
            number(&area["start"]),
            pages(&area["slots"]),
            pages(&area["used"])
        );
    }
    text
}

/// Describes the place that pages go to, and the reason.
fn pages_go(place: Option<SwapPlace>, placement: &Value) -> &'static str {
    match (place, placement.as_str() == Some(Placement::Areas.name())) {
        (_, true) => "to swap areas next to the disk head",
        (Some(SwapPlace::Auto), false) => {
            "to the volume's start: its device has no head, and areas would wear it (--place areas has them)"
        }
        (_, false) => "to the volume's start",
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<24} {value}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_whole_pages_within_the_kernel_s_limits() {
        let page = page_bytes();
        assert_eq!(whole_pages(page * 12 + 1).unwrap(), page * 12);
        let small = whole_pages(page).unwrap_err().to_string();
        assert!(small.contains("too small"), "{small}");
        assert!(whole_pages(u64::MAX).is_err());
    }

    #[test]
    fn a_status_is_told_in_words() {
        assert_eq!(text(&SwapStatus::default(), None), "state                    off\n");
        let area = json!({"group": 3, "start": 900, "blocks": 8192, "slots": 8192, "used": 256, "leaving": true});
        let counters =
            json!({"pages_out": 300, "out_requests": 100, "pages_in": 8, "neighbours_in": 8, "in_requests": 2});
        let swap =
            json!({"placement": "saf", "used": 256, "traditional_used": 0, "areas": [area], "counters": counters});
        let status = SwapStatus { state: SwapState::On, bytes: 256 << 20, swap: Some(swap), ..SwapStatus::default() };
        let shown = text(&status, None);
        for part in [
            "size                     256 MiB",
            "300 in 100 requests, 3.0 each",
            "in 2 requests, 8.0 each",
            "pages go                 to swap areas",
            "gives way",
        ] {
            assert!(shown.contains(part), "{part}:\n{shown}");
        }
        assert!(pages_go(Some(SwapPlace::Auto), &json!("partition")).contains("has no head"));
        assert_eq!(pages_go(Some(SwapPlace::Start), &json!("partition")), "to the volume's start");
    }
}
