//! Mount options: parses the text of `-o` and validates it in one step.

use std::str::FromStr;
use std::time::Duration;

use moafs_ext::place::{Directories, Policy};
use moafs_f2fs::clean::{Cleaner, Order};
use moafs_f2fs::place::{Recycling, Temperature};
use moafs_fuse::{MountError, MountFlags, SessionOptions, Transport};
use moafs_vfs::Options;
use moafs_vfs::api::{AtimePolicy, CacheRole};

use crate::driver_options::DriverOption;
use crate::follower::synchronous_of;
use crate::identity::{IDENTITY_FLAGS, Identity, Overrides};
use crate::{option_list, size};

/// Smallest cache, in bytes: the transport's buffers and a few requests must fit in.
const CACHE_BYTES_MIN: u64 = 8 << 20;
/// Range of the largest device request, in bytes.
const TRANSFER_BYTES: std::ops::RangeInclusive<u64> = 4096..=64 << 20;
/// Largest read-ahead, in bytes.
const READ_AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Largest sum of a small file's neighbours, in bytes.
const CO_READ_BYTES_MAX: u64 = 1 << 20;
/// Smallest part of an image, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Longest age or interval, in seconds: a day.
const SECS_MAX: f64 = 86_400.0;
/// Largest number of a user or group; the one above it stands for none.
const ID_MAX: u32 = u32::MAX - 1;
/// Most serving threads.
const THREADS_MAX: u64 = 256;
/// Threads of a CPU whose buffers are part of the cache's budget. Those of others take memory only while that many
/// requests with data are served at once.
const BUSY_RING_THREADS_PER_CPU: usize = 4;

/// The use of the host's page cache for image or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostCache {
    /// Bypass the host's page cache if the host can.
    #[default]
    Auto,
    /// `direct`: bypass it, or fail.
    Bypass,
    /// `buffered`: use it.
    Use,
}

/// The part of an image that is the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartBytes {
    /// Its first byte.
    pub offset: u64,
    /// Its length; `None` up to the end of the image.
    pub len: Option<u64>,
}

/// All settings of a mount, validated.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Settings of the volume.
    pub volume: Options,
    /// Settings of the mount and of the threads that serve it.
    pub session: SessionOptions,
    /// The use of the host's page cache.
    pub host_cache: HostCache,
    /// `plain`: type `fuse` even where `fuseblk` is possible.
    pub plain: bool,
    /// `check_opens`: the kernel asks before every open.
    pub check_opens: bool,
    /// `no_sandbox`: the daemon keeps all privileges.
    pub no_sandbox: bool,
    /// `offset` and `sizelimit`: the part of the image that is the volume.
    pub part: Option<PartBytes>,
    /// `uid`, `gid`, `umask`, `fakeroot`: the owners that are shown, and the rights of callers.
    pub identity: Identity,
    /// `fakeroot` was given.
    fake_root: bool,
    /// Options of one format only, in the order given. The code that opens the volume checks and uses them.
    pub format: Vec<FormatOption>,
    /// The options as they were given, for `.moafs/stats`.
    pub given: Vec<String>,
}

/// The reason for which an option cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The option does not exist. The message has those that it may be meant for.
    #[error("unknown mount option `{name}`{}; all: `moafs mount --help`", nearest(name))]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The value is no number of the right kind or out of range.
    #[error("mount option `{option}`: {problem}")]
    Value {
        /// The option as given.
        option: String,
        /// The error, and the values that are allowed.
        problem: String,
    },
    /// The option exists, but not in this situation.
    #[error("mount option `{option}` is not possible: {reason}")]
    Impossible {
        /// The option as given.
        option: String,
        /// The reason.
        reason: &'static str,
    },
    /// The option is for volumes of another format.
    #[error("mount option `{option}` is for {of} volumes, and this is an {volume} volume; of its own are:\n{}",
            help_of(.volume))]
    OtherFormat {
        /// The option as given.
        option: String,
        /// The format that the option is for.
        of: &'static str,
        /// The format of the volume.
        volume: &'static str,
    },
}

/// An option of the volume's format: the name exists, the value is not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOption {
    /// The format that the option is for: `ext` (ext2, ext3, ext4) or `f2fs`.
    pub of: &'static str,
    /// The name, without value.
    pub name: &'static str,
    text: String,
}

impl FormatOption {
    /// Returns the option with its value, as it was given.
    fn given(&self) -> String {
        if self.text.is_empty() { self.name.to_owned() } else { format!("{}={}", self.name, self.text) }
    }

    /// Tells whether an option is for volumes of the format `volume`. If not, it changes nothing there: the kernel's
    /// drivers have it for other formats as well.
    ///
    /// # Errors
    /// [`OptionError::OtherFormat`], which lists the options of the volume's format.
    pub fn is_for(&self, volume: &'static str) -> Result<bool, OptionError> {
        if self.of == volume {
            return Ok(true);
        }
        match DriverOption::of(&self.given()) {
            Some(DriverOption::Accepted) => Ok(false),
            _ => Err(OptionError::OtherFormat { option: self.given(), of: self.of, volume }),
        }
    }

    /// Parses the value as a type that has names for its values.
    ///
    /// # Errors
    /// [`OptionError::Value`] with the type's own message.
    pub fn parse<T: FromStr<Err = String>>(&self) -> Result<T, OptionError> {
        self.text.parse().map_err(|problem: String| Value { option: &self.given(), text: &self.text }.wrong(problem))
    }

    /// Parses the value as a number within a range.
    ///
    /// # Errors
    /// [`OptionError::Value`] if it is no number or out of range.
    pub fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, OptionError> {
        Value { option: &self.given(), text: &self.text }.number(range)
    }

    /// Parses the value as `on` or `off`.
    ///
    /// # Errors
    /// [`OptionError::Value`] if it is neither.
    pub fn on_or_off(&self) -> Result<bool, OptionError> {
        match self.text.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(Value { option: &self.given(), text: &self.text }.wrong("give on or off")),
        }
    }
}

/// An option of moafs: name, placeholder of its value (empty: a switch), help text.
struct Own {
    name: &'static str,
    value: &'static str,
    help: &'static str,
}

/// Likeness, from 0 to 1, of the name of an option to one that may be meant.
const LIKENESS_MIN: f64 = 0.85;
/// Most options that may be meant.
const NEAREST_MAX: usize = 3;

const OWN: &[Own] = &[
    Own { name: "cache", value: "SIZE", help: "memory for the volume's cache, buffers included (default 256M)" },
    Own { name: "dirty", value: "PERCENT", help: "share of the cache that may wait to be written (default 60)" },
    Own { name: "dirty_age", value: "SECONDS", help: "write changed data after this time (default 30)" },
    Own { name: "commit", value: "SECONDS", help: "interval of committing metadata (default 5)" },
    Own { name: "max_transfer", value: "SIZE", help: "largest device request (default 1M)" },
    Own { name: "read_ahead", value: "SIZE", help: "largest read-ahead of a sequential reader (default 1M)" },
    Own {
        name: "coread",
        value: "SIZE|off",
        help: "read a small file's neighbours with it, up to this much (default 128K)",
    },
    Own { name: "transport", value: "auto|uring|dev", help: "path of requests from the kernel (default auto)" },
    Own { name: "threads", value: "N", help: "serving threads: that read /dev/fuse at once, or of io_uring per CPU" },
    Own { name: "direct", value: "", help: "bypass the host's page cache, or fail" },
    Own { name: "buffered", value: "", help: "use the host's page cache" },
    Own { name: "check_opens", value: "", help: "refuse immutable and append-only files at open (slower opens)" },
    Own { name: "plain", value: "", help: "type fuse even where fuseblk (waiting sync and umount) can be had" },
    Own { name: "no_sandbox", value: "", help: "the daemon keeps all of root's privileges" },
    Own { name: "offset", value: "BYTES", help: "the volume begins at this byte of the image" },
    Own { name: "sizelimit", value: "BYTES", help: "the volume has at most this length" },
    Own { name: "uid", value: "N", help: "all files are shown as owned by this user" },
    Own { name: "gid", value: "N", help: "all files are shown as of this group" },
    Own { name: "umask", value: "OCTAL", help: "all files are shown with all permissions but these" },
    Own { name: "fakeroot", value: "", help: "the mounting user acts as root on the volume; no other user may use it" },
    Own { name: "noallow_other", value: "", help: "only the mounting user may use the mount (default without root)" },
];

/// Options of volumes of one format only.
const OF_FORMATS: &[(&str, &[Own])] = &[
    (
        "ext",
        &[
            Own { name: "place", value: "POLICY", help: "placement of data:" },
            Own {
                name: "dirs",
                value: "RULE",
                help: "groups of new directories (ffs, ffs-paper and cowrite-paper: spread by default):",
            },
            Own {
                name: "log_small_writes",
                value: "on|off",
                help: "with a journal: fsync small writes through it; for experiments, loses data (default off)",
            },
        ],
    ),
    (
        "f2fs",
        &[
            Own { name: "cleaner", value: "POLICY", help: "choose which sections are cleaned:" },
            Own {
                name: "recycle",
                value: "POLICY",
                help: "write new data into holes of used segments when no clean one is left:",
            },
            Own { name: "temperature", value: "POLICY", help: "tell hot from cold data:" },
            Own { name: "clean-order", value: "ORDER", help: "order of the blocks that cleaning moves:" },
            Own { name: "clean_batch", value: "N", help: "sections to clean together, 1 to 64 (default 1)" },
            Own { name: "background_gc", value: "on|off", help: "clean while no requests come (default on)" },
            Own { name: "discard", value: "", help: "discard free segments on the device (default)" },
            Own { name: "nodiscard", value: "", help: "discard nothing" },
            Own {
                name: "disable_roll_forward",
                value: "",
                help: "give up what was fsynced after the last checkpoint, if the mount is refused because of it",
            },
        ],
    ),
];

/// Options whose values have names: the name of the default, and all names with help texts.
const CHOICES: &[Choices] = &[
    Choices { option: "place", default: || Policy::default().name(), values: &Policy::VALUES },
    Choices { option: "dirs", default: || Policy::default().directories().name(), values: &Directories::VALUES },
    Choices { option: "cleaner", default: || Cleaner::default().name(), values: &Cleaner::VALUES },
    Choices { option: "recycle", default: || Recycling::default().name(), values: &Recycling::VALUES },
    Choices { option: "temperature", default: || Temperature::default().name(), values: &Temperature::VALUES },
    Choices { option: "clean-order", default: || Order::default().name(), values: &Order::VALUES },
];

struct Choices {
    option: &'static str,
    default: fn() -> &'static str,
    values: &'static [(&'static str, &'static str)],
}

/// Former names of options, which stay accepted.
const FORMER_NAMES: &[(&str, &str)] = &[("reuse", "recycle"), ("gather", "clean_batch")];

/// Options of FUSE and mount(8), as listed in messages.
const COMMON: &str = "ro rw suid nosuid dev nodev exec noexec sync async dirsync atime noatime relatime strictatime \
     lazytime allow_other auto_unmount fsname=NAME subtype=NAME max_read=BYTES read_ahead_kb=N context=CONTEXT";

/// Widest line of the summary, in columns.
const COLUMNS: usize = 78;

/// Returns the options by volume, without explanations: the first of several values is the default.
pub fn summary() -> String {
    let words = |options: &[Own]| wrapped(options.iter().map(usage));
    let mut text = format!("Mount options of moafs:\n{}", words(OWN));
    for (format, options) in OF_FORMATS {
        text += &format!("of {} volumes:\n{}", family(format), words(options));
    }
    text + &format!("of every mount:\n{}", wrapped(COMMON.split(' ').map(str::to_owned)))
}

/// Returns the list of options with their meanings, one per line.
pub fn manual() -> String {
    let mut text = format!("Options of moafs:\n{}\n", lines(OWN));
    for (format, options) in OF_FORMATS {
        text += &format!("Options of {} volumes:\n{}\n", family(format), lines(options));
    }
    text + &format!("Options of every mount:\n{}", wrapped(COMMON.split(' ').map(str::to_owned)))
}

/// Returns the names of the formats that share options.
fn family(format: &str) -> &str {
    if format == "ext" { "ext2, ext3 and ext4" } else { "F2FS" }
}

/// Returns an option as it is given; of several values the default stands first.
fn usage(own: &Own) -> String {
    let Some(choices) = CHOICES.iter().find(|choices| choices.option == own.name) else {
        return if own.value.is_empty() { own.name.to_owned() } else { format!("{}={}", own.name, own.value) };
    };
    let default = (choices.default)();
    let others = choices.values.iter().map(|(name, _)| *name).filter(|name| *name != default);
    let values: Vec<&str> = std::iter::once(default).chain(others).collect();
    format!("{}={}", own.name, values.join("|"))
}

/// Returns words in indented lines.
fn wrapped(words: impl Iterator<Item = String>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= COLUMNS) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(format!("  {word}")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the question whether options with similar names are meant; nothing if there are none.
fn nearest(given: &str) -> String {
    let name = given.split('=').next().unwrap_or(given);
    let own = OWN.iter().chain(OF_FORMATS.iter().flat_map(|(_, options)| *options)).map(|own| own.name);
    let common = COMMON.split(' ').filter_map(|option| option.split('=').next());
    let all = own.chain(common).map(|known| (strsim::jaro_winkler(name, known), known));
    let mut near: Vec<_> = all.filter(|(likeness, _)| *likeness >= LIKENESS_MIN).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    near.dedup();
    let names: Vec<String> = near.iter().take(NEAREST_MAX).map(|(_, known)| format!("`{known}`")).collect();
    if names.is_empty() { String::new() } else { format!(" (do you mean {}?)", names.join(" or ")) }
}

/// Returns the list of options of one format, one per line.
fn help_of(format: &str) -> String {
    OF_FORMATS.iter().filter(|(of, _)| *of == format).map(|(_, options)| lines(options)).collect()
}

fn lines(options: &[Own]) -> String {
    let line = |own: &Own| {
        let usage = if own.value.is_empty() { own.name.to_owned() } else { format!("{}={}", own.name, own.value) };
        let choices: String = CHOICES.iter().filter(|choices| choices.option == own.name).map(lines_of).collect();
        format!("  {usage:<27} {}\n{choices}", own.help)
    };
    options.iter().map(line).collect()
}

/// Returns the names that an option takes, one per line, with their help texts.
fn lines_of(choices: &Choices) -> String {
    let default = (choices.default)();
    let line = |(name, help): &(&str, &str)| {
        let mark = if *name == default { " (default)" } else { "" };
        format!("      {name:<23} {help}{mark}\n")
    };
    choices.values.iter().map(line).collect()
}

/// Returns the option of a format with this name.
fn of_format(name: &str, value: &str) -> Option<FormatOption> {
    let name = FORMER_NAMES.iter().find(|(former, _)| *former == name).map_or(name, |(_, name)| name);
    let all = OF_FORMATS.iter().flat_map(|(of, options)| options.iter().map(move |own| (*of, own)));
    let fits = |own: &Own| own.name == name && own.value.is_empty() == value.is_empty();
    all.into_iter().find(|(_, own)| fits(own)).map(|(of, own)| FormatOption {
        of,
        name: own.name,
        text: value.to_owned(),
    })
}

impl Settings {
    /// Creates the default settings, for root or an ordinary user.
    pub fn new(root: bool) -> Settings {
        let mut session = SessionOptions::default();
        session.mount.allow_other = root;
        session.mount.default_permissions = true;
        session.mount.subtype = Some("moafs".to_owned());
        if root {
            // An ordinary user's volume could bring set-id programs and devices; root's own may hold them.
            session.mount.flags -= MountFlags::NOSUID | MountFlags::NODEV;
        }
        // The kernel caches what is read, so the volume's cache is mainly for data that wait to be written.
        let volume = Options { role: CacheRole::Behind, dirty_percent: 60, ..Options::default() };
        let (format, given) = (Vec::new(), Vec::new());
        Settings {
            volume,
            session,
            host_cache: HostCache::Auto,
            plain: false,
            check_opens: false,
            no_sandbox: false,
            part: None,
            identity: Identity::Stored,
            fake_root: false,
            format,
            given,
        }
    }

    /// Parses `-o` lists, each comma-separated; later options win.
    ///
    /// # Errors
    /// Unknown options and values out of range, with the allowed ones.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>, root: bool) -> Result<Settings, OptionError> {
        let mut settings = Settings::new(root);
        for option in option_list::split(lists) {
            settings.apply(option)?;
            settings.given.push(option.to_owned());
        }
        settings.finish()?;
        Ok(settings)
    }

    fn apply(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if let Some(of_format) = of_format(name, value) {
            self.format.push(of_format);
            return Ok(());
        }
        let value_of = Value { option, text: value };
        match name {
            "cache" => self.volume.cache_bytes = value_of.size(CACHE_BYTES_MIN..=1 << 46)?,
            "dirty" => self.volume.dirty_percent = value_of.number(1..=90)? as u8,
            "dirty_age" => self.volume.dirty_age = value_of.seconds()?,
            "commit" => self.volume.commit_interval = value_of.seconds()?,
            "max_transfer" => self.volume.transfer_bytes_max = value_of.size(TRANSFER_BYTES)?,
            "read_ahead" => {
                self.volume.read_ahead_bytes = value_of.size(0..=READ_AHEAD_BYTES_MAX)?;
                self.session.mount.read_ahead_kb = (self.volume.read_ahead_bytes >> 10) as u32;
            }
            "coread" => self.volume.co_read_bytes = value_of.size_or_off(0..=CO_READ_BYTES_MAX)?,
            "transport" => self.session.transport = value_of.transport()?,
            "offset" => self.part.get_or_insert_default().offset = value_of.size(0..=u64::MAX)? as u64,
            "sizelimit" => self.part.get_or_insert_default().len = Some(value_of.size(SECTOR_BYTES..=u64::MAX)? as u64),
            "threads" => self.set_threads(value_of.number(1..=THREADS_MAX)? as usize),
            "uid" | "gid" | "umask" => return self.override_all(name, &value_of),
            _ => return self.apply_switch(option),
        }
        Ok(())
    }

    /// Adds an option that overrides the owner, the group or the permissions of all files.
    fn override_all(&mut self, name: &str, value: &Value<'_>) -> Result<(), OptionError> {
        let overrides = self.identity.overrides();
        let id = || value.number(0..=u64::from(ID_MAX)).map(|id| u32::try_from(id).ok());
        self.identity = Identity::Overridden(match name {
            "uid" => Overrides { uid: id()?, ..overrides },
            "gid" => Overrides { gid: id()?, ..overrides },
            _ => Overrides { umask: Some(value.umask()?), ..overrides },
        });
        Ok(())
    }

    fn apply_switch(&mut self, option: &str) -> Result<(), OptionError> {
        match option {
            "fakeroot" => self.fake_root = true,
            "direct" => self.host_cache = HostCache::Bypass,
            "buffered" => self.host_cache = HostCache::Use,
            "plain" => self.plain = true,
            "check_opens" => self.check_opens = true,
            "no_sandbox" => self.no_sandbox = true,
            "noallow_other" => self.session.mount.allow_other = false,
            _ => return self.apply_drivers(option),
        }
        Ok(())
    }

    /// Answers an option of the kernel's drivers, or applies one of every mount.
    fn apply_drivers(&mut self, option: &str) -> Result<(), OptionError> {
        match DriverOption::of(option) {
            Some(DriverOption::Accepted) => Ok(()),
            Some(DriverOption::Refused(reason)) => Err(OptionError::Impossible { option: option.to_owned(), reason }),
            None => self.apply_common(option),
        }
    }

    /// Applies an option of every mount; some concern the volume as well.
    fn apply_common(&mut self, option: &str) -> Result<(), OptionError> {
        match option {
            "ro" => self.volume.read_only = true,
            "rw" => self.volume.read_only = false,
            "noatime" => self.volume.atime = AtimePolicy::Never,
            "relatime" | "atime" | "nostrictatime" => self.volume.atime = AtimePolicy::Relative,
            "strictatime" | "norelatime" => self.volume.atime = AtimePolicy::Strict,
            _ => {}
        }
        self.session.mount.apply(option).map_err(|error| match error {
            MountError::UnknownOption(name) => OptionError::Unknown { name },
            other => OptionError::Value { option: option.to_owned(), problem: other.to_string() },
        })?;
        self.volume.synchronous = synchronous_of(self.session.mount.flags);
        Ok(())
    }

    fn set_threads(&mut self, threads: usize) {
        self.session.dev_threads = threads;
        self.session.ring_threads_per_cpu = threads;
    }

    /// Derives the settings that depend on several options: the transport's buffers are part of the cache's budget.
    fn finish(&mut self) -> Result<(), OptionError> {
        self.settle_identity()?;
        self.session.ring_memory_max = self.session.ring_memory_max.min(self.volume.cache_bytes / 4);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_per_cpu = self.session.ring_threads_per_cpu.min(BUSY_RING_THREADS_PER_CPU);
        let buffers = cpus * threads_per_cpu * self.session.init.max_write as usize;
        self.volume.cache_bytes -= buffers.min(self.session.ring_memory_max);
        self.session.init.max_readahead = u32::try_from(self.volume.read_ahead_bytes).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Lets the kernel check what is to be checked, for those who may use the mount.
    fn settle_identity(&mut self) -> Result<(), OptionError> {
        let impossible = |option: &str, reason| Err(OptionError::Impossible { option: option.to_owned(), reason });
        match (self.fake_root, self.identity) {
            (false, Identity::Stored) => return Ok(()),
            (false, _) => {}
            (true, Identity::Overridden(_)) => {
                return impossible("fakeroot", "with it owners are shown as they are stored");
            }
            (true, _) => self.identity = Identity::FakeRoot,
        }
        self.session.mount.flags |= IDENTITY_FLAGS;
        self.session.init.posix_acl = false;
        if self.identity == Identity::FakeRoot {
            if self.given.iter().any(|option| option == "allow_other") {
                return impossible("allow_other", "with fakeroot every user of the mount would be root on it");
            }
            self.session.mount.allow_other = false;
            self.session.mount.default_permissions = false;
        }
        Ok(())
    }
}

/// The value of an option, with the option for the message.
struct Value<'a> {
    option: &'a str,
    text: &'a str,
}

impl Value<'_> {
    fn wrong(&self, problem: impl Into<String>) -> OptionError {
        OptionError::Value { option: self.option.to_owned(), problem: problem.into() }
    }

    fn size(&self, range: std::ops::RangeInclusive<u64>) -> Result<usize, OptionError> {
        let bytes = size::parse(self.text).map_err(|error| self.wrong(error.to_string()))?;
        let fits = usize::try_from(bytes).ok().filter(|_| range.contains(&bytes));
        fits.ok_or_else(|| self.wrong(format!("must lie between {} and {} bytes", range.start(), range.end())))
    }

    /// Parses a size, or 0 for `off`.
    fn size_or_off(&self, range: std::ops::RangeInclusive<u64>) -> Result<usize, OptionError> {
        if self.text == "off" { Ok(0) } else { self.size(range) }
    }

    fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, OptionError> {
        let number = self.text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.wrong(format!("give a number from {} to {}", range.start(), range.end())))
    }

    fn seconds(&self) -> Result<Duration, OptionError> {
        let secs = self.text.parse::<f64>().ok().filter(|secs| (0.001..=SECS_MAX).contains(secs));
        let secs = secs.ok_or_else(|| self.wrong("give seconds between 0.001 and 86400"))?;
        Ok(Duration::from_secs_f64(secs))
    }

    fn umask(&self) -> Result<u32, OptionError> {
        let umask = u32::from_str_radix(self.text, 8).ok().filter(|umask| *umask <= 0o777);
        umask.ok_or_else(|| self.wrong("give octal digits from 0 to 777"))
    }

    fn transport(&self) -> Result<Transport, OptionError> {
        match self.text {
            "auto" => Ok(Transport::Auto),
            "uring" => Ok(Transport::Uring),
            "dev" => Ok(Transport::Dev),
            _ => Err(self.wrong("give auto, uring (io_uring or fail) or dev (/dev/fuse)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use moafs_vfs::api::Synchronous;

    use super::*;

    #[test]
    fn options_reach_the_volume_and_the_mount() {
        let lists = ["ro,noatime,cache=64M,max_transfer=128K", "commit=0.5,transport=dev,threads=3,nosuid,plain"];
        let settings = Settings::parse(lists, true).unwrap();
        assert!(settings.volume.read_only && settings.plain && settings.session.mount.allow_other);
        assert_eq!(settings.volume.atime, AtimePolicy::Never);
        assert_eq!(settings.volume.synchronous, Synchronous::Marked);
        let synchronous = |list| Settings::parse([list], true).unwrap().volume.synchronous;
        assert_eq!(synchronous("sync,dirsync,noatime"), Synchronous::All);
        assert_eq!(synchronous("sync,dirsync,async"), Synchronous::Names);
        let context = Settings::parse(["context=\"a:b:c1,c2\",ro"], true).unwrap();
        assert_eq!(context.session.mount.extra, ["context=a:b:c1,c2"]);
        assert!(context.volume.read_only);
        assert_eq!(settings.volume.transfer_bytes_max, 128 << 10);
        assert_eq!(settings.volume.commit_interval, Duration::from_millis(500));
        assert_eq!((settings.session.transport, settings.session.dev_threads), (Transport::Dev, 3));
        assert!(settings.session.mount.flags.contains(MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOATIME));
        assert!(settings.volume.cache_bytes + settings.session.ring_memory_max >= 64 << 20);
        assert!(settings.volume.cache_bytes <= 64 << 20);
    }

    #[test]
    fn the_last_of_two_contradicting_options_wins() {
        let settings = Settings::parse(["ro,rw,noatime,strictatime,direct,buffered"], false).unwrap();
        assert!(!settings.volume.read_only && !settings.session.mount.allow_other);
        assert_eq!((settings.volume.atime, settings.host_cache), (AtimePolicy::Strict, HostCache::Use));
    }

    #[test]
    fn co_reading_has_a_size_or_is_off() {
        let co_read = |option| Settings::parse([option], true).unwrap().volume.co_read_bytes;
        assert_eq!((co_read("coread=64K"), co_read("coread=off"), co_read("coread=0")), (64 << 10, 0, 0));
        assert_eq!(co_read("rw"), 128 << 10);
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_nearest() {
        let message = |option| Settings::parse([option], true).unwrap_err().to_string();
        assert_eq!(
            message("cahce=64M"),
            "unknown mount option `cahce=64M` (do you mean `cache`?); all: `moafs mount --help`"
        );
        assert!(message("noatme").contains("`noatime`"), "{}", message("noatme"));
        assert!(message("plane").contains("`plain`"), "{}", message("plane"));
        assert_eq!(message("xyzzy"), "unknown mount option `xyzzy`; all: `moafs mount --help`");
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        for option in [
            "cache=",
            "cache=12x",
            "cache=1K",
            "cache=99999999999T",
            "cache=-1",
            "dirty=0",
            "dirty=91",
            "dirty_age=-1",
            "commit=inf",
            "commit=nan",
            "max_transfer=1",
            "coread=on",
            "coread=2M",
            "threads=0",
            "transport=tcp",
            "remount",
            "cache",
        ] {
            assert!(Settings::parse([option], true).is_err(), "{option}");
        }
    }

    #[test]
    fn options_of_a_format_are_kept_for_whoever_opens_the_volume() {
        let lists = ["cleaner=greedy,nodiscard,clean_batch=4,ro", "background_gc=off"];
        let settings = Settings::parse(lists, true).unwrap();
        let names: Vec<_> = settings.format.iter().map(|option| (option.of, option.name)).collect();
        let named = ["cleaner", "nodiscard", "clean_batch", "background_gc"].map(|name| ("f2fs", name));
        assert_eq!(names, named);
        let [cleaner, _, batch, background] = &settings.format[..] else { panic!("four options") };
        assert_eq!((batch.number(1..=64), background.on_or_off()), (Ok(4), Ok(false)));
        assert!(batch.number(5..=64).is_err() && batch.on_or_off().is_err());
        assert_eq!(cleaner.is_for("f2fs"), Ok(true));
        let message = cleaner.is_for("ext").unwrap_err().to_string();
        assert!(message.contains("`cleaner=greedy` is for f2fs volumes") && message.contains("place="), "{message}");
        for wrong in ["cleaner", "cleaner=", "discard=yes", "clean_batch"] {
            assert!(Settings::parse([wrong], true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn former_names_of_options_are_accepted() {
        let settings = Settings::parse(["reuse=never,gather=4"], true).unwrap();
        let names: Vec<_> = settings.format.iter().map(FormatOption::given).collect();
        assert_eq!(names, ["recycle=never", "clean_batch=4"]);
    }

    #[test]
    fn the_summary_has_all_options_on_one_screen() {
        let summary = summary();
        let options = OWN.iter().chain(OF_FORMATS.iter().flat_map(|(_, options)| *options));
        for own in options {
            assert!(summary.split_whitespace().any(|word| word.split('=').next() == Some(own.name)), "{}", own.name);
        }
        assert!(summary.contains(" place=cowrite|") && summary.contains(" recycle=auto|"), "{summary}");
        assert!(summary.lines().count() <= 20 && summary.lines().all(|line| line.len() <= 80), "{summary}");
    }

    #[test]
    fn owners_and_permissions_are_overridden_together_and_not_with_those_of_a_fake_root() {
        let settings = Settings::parse(["umask=027,uid=1000,gid=4"], true).unwrap();
        let overrides = Overrides { uid: Some(1000), gid: Some(4), umask: Some(0o27) };
        assert_eq!(settings.identity, Identity::Overridden(overrides));
        let mount = &settings.session.mount;
        assert!(mount.default_permissions && mount.flags.contains(MountFlags::NOSUID | MountFlags::NODEV));
        assert!(!settings.session.init.posix_acl);
        for wrong in ["uid=", "uid=root", "gid=-1", "umask=8", "umask=1777", "uid=4294967295", "fakeroot=1"] {
            assert!(Settings::parse([wrong], true).is_err(), "{wrong}");
        }
        for list in ["fakeroot,uid=5", "umask=0,fakeroot"] {
            let message = Settings::parse([list], false).unwrap_err().to_string();
            assert!(message.contains("`fakeroot` is not possible"), "{message}");
        }
    }

    #[test]
    fn a_fake_root_is_alone_on_its_mount() {
        for root in [true, false] {
            let settings = Settings::parse(["fakeroot,suid,dev"], root).unwrap();
            let mount = &settings.session.mount;
            assert_eq!(settings.identity, Identity::FakeRoot);
            assert!(!mount.allow_other && !mount.default_permissions, "root: {root}");
            assert!(mount.flags.contains(MountFlags::NOSUID | MountFlags::NODEV), "root: {root}");
            for list in ["fakeroot,allow_other", "allow_other,fakeroot"] {
                let message = Settings::parse([list], root).unwrap_err().to_string();
                assert!(message.contains("would be root"), "{message}");
            }
        }
        assert!(Settings::parse(["allow_other"], false).unwrap().session.mount.default_permissions);
    }

    #[test]
    fn the_manual_lists_the_policies_that_exist() {
        let help = manual();
        for (name, text) in Policy::VALUES.iter().chain(&Cleaner::VALUES).chain(&Recycling::VALUES) {
            assert!(help.lines().any(|line| line.contains(name) && line.contains(text)), "{name}");
        }
        assert!(help.contains("(default)") && !help.contains("reuse=") && !help.contains("gather="), "{help}");
    }

    #[test]
    fn what_fstab_adds_is_ignored() {
        Settings::parse(["defaults,noauto,nofail,_netdev,x-systemd.automount,,user"], true).unwrap();
    }

    #[test]
    fn options_of_the_kernels_drivers_change_nothing_or_are_refused() {
        let settings = Settings::parse(["defaults,errors=remount-ro,discard,acl,commit=30"], true).unwrap();
        assert_eq!(settings.volume.commit_interval, Duration::from_secs(30));
        let [discard] = &settings.format[..] else { panic!("one option") };
        assert_eq!((discard.is_for("f2fs"), discard.is_for("ext")), (Ok(true), Ok(false)));
        let message = Settings::parse(["data=journal"], true).unwrap_err().to_string();
        assert!(message.contains("`data=journal` is not possible") && message.contains("data=ordered"), "{message}");
    }
}
