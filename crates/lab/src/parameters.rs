//! The parameters that can be set, by name: one table for help, errors and reports.
//!
//! Defaults are the paper's machine: a 1 GHz Pentium III with 256 MB under OpenBSD 4.0. That system
//! gave 5 % of memory to its buffer cache (`BUFCACHEPERCENT`), file data included; its buffer
//! daemon began to write when a quarter of it was dirty (`vfs_bio.c` of 2006: `hidirtypages =
//! bufpages / 4`); its syncer waited 30 s for files and 28 to 29 s for metadata. It turned the
//! drive's write cache on (`wd.c`) and never told a drive to flush it.
//!
//! Ours begins to write in the background at three quarters of `dirty`, so a third of the cache
//! stands for that quarter.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use moafs_ext::place::Directories;

use crate::cpu::Cpu;
use crate::error::{LabError, Result};
use crate::log_system::LogSystem;
use crate::swap_system::SwapSystem;
use crate::system::System;
use crate::write_cache::WriteCache;

const MIB: f64 = (1 << 20) as f64;

/// The values of all parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// Systems to compare, by name; empty: those of the experiment.
    pub systems: Vec<String>,
    /// Drives, by preset's name or file; empty: those of the experiment.
    pub drives: Vec<String>,
    /// Utilizations in percent; `None`: those of the experiment.
    pub utilizations: Option<Vec<u8>>,
    /// The rule for new directories in all systems of cw-… that have none of their own.
    pub directories: Directories,
    /// Layout score of the aged volumes.
    pub score: f64,
    /// Memory for file data and metadata at full size, in bytes. It shrinks with the scale.
    pub cache_bytes: u64,
    /// A segment buffer at full size, in bytes. It shrinks with the scale.
    pub buffer_bytes: u64,
    /// Writes of IO-TEST at full size.
    pub writes: u64,
    /// Share of the cache that may be dirty, in percent; at three quarters of it writing begins.
    pub dirty_percent: u8,
    /// A dirty block older than this is written back, in seconds.
    pub age_s: u64,
    /// Interval at which metadata are written, in seconds. `None`: as often as the experiment's
    /// system did.
    pub commit_s: Option<u64>,
    /// Commands at the drive at once in lfs-…; `None`: one, which is no condition of its own.
    pub queue_depths: Option<Vec<u32>>,
    /// Largest request in bytes.
    pub transfer_bytes: u64,
    /// Read-ahead of a sequential reader at most, in bytes.
    pub read_ahead_bytes: u64,
    /// Most bytes that a miss of a small file brings where co-writing is in use.
    pub co_read_bytes: u64,
    /// The drive's write cache.
    /// `None`: as the experiment's system had it.
    pub write_cache: Option<WriteCache>,
    /// Processor time in percent of [`Cpu::PENTIUM_III`].
    pub cpu_percent: u64,
    /// Processor time to compile one source, in milliseconds.
    pub compile_ms: u64,
    /// Memory for processes and files of saf-… at full size, in bytes.
    pub memory_bytes: u64,
    /// A swap area at full size, in bytes.
    pub area_bytes: u64,
    /// Position of the programs' directory on the volume, in percent of its groups.
    pub position: u64,
    /// Sweeps of SOR. `None`: as many as make it run about as long as the experiment's file program.
    pub sweeps: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            systems: Vec::new(),
            drives: Vec::new(),
            utilizations: None,
            directories: Directories::Spread,
            score: 0.8,
            cache_bytes: (12.8 * MIB) as u64,
            buffer_bytes: 4 << 20,
            writes: 131_072,
            dirty_percent: 33,
            age_s: 30,
            commit_s: None,
            queue_depths: None,
            transfer_bytes: 128 << 10,
            read_ahead_bytes: 128 << 10,
            co_read_bytes: 128 << 10,
            write_cache: None,
            cpu_percent: 100,
            compile_ms: 150,
            memory_bytes: 464 << 20,
            area_bytes: 32 << 20,
            position: 50,
            sweeps: None,
        }
    }
}

/// A parameter: its name, its meaning, and its form as text.
struct Known {
    name: &'static str,
    meaning: &'static str,
    set: fn(&mut Parameters, &str) -> Result<(), String>,
    show: fn(&Parameters) -> String,
}

const KNOWN: [Known; 22] = [
    Known {
        name: "systems",
        meaning: "systems to compare, separated by commas (`moafs lab list` shows them); an experiment runs those of its \
                  own, or its usual ones",
        set: |p, text| list(text, known_system).map(|all| p.systems = all),
        show: |p| or_usual(&p.systems),
    },
    Known {
        name: "drives",
        meaning: "drives, separated by commas: names (`moafs lab list` shows them) or files",
        set: |p, text| list(text, |name| Ok(name.to_owned())).map(|all| p.drives = all),
        show: |p| or_usual(&p.drives),
    },
    Known {
        name: "utilization",
        meaning: "how full the volume is before the run, in percent, separated by commas: 0 to 90",
        set: |p, text| list(text, |one| number(one, 0, 90)).map(|all| p.utilizations = Some(all)),
        show: |p| match &p.utilizations {
            Some(all) => all.iter().map(u8::to_string).collect::<Vec<_>>().join(", ") + " %",
            None => "those of the experiment".to_owned(),
        },
    },
    Known {
        name: "dirs",
        meaning: "groups of new directories in cw-…, for all systems alike: spread (as FFS does) or near (as co-writing mounts \
                  do)",
        set: |p, text| text.parse().map(|rule| p.directories = rule),
        show: |p| p.directories.to_string(),
    },
    Known {
        name: "score",
        meaning: "layout score of the aged volume: 0.7 to 1",
        set: |p, text| number(text, 0.7, 1.0).map(|score| p.score = score),
        show: |p| p.score.to_string(),
    },
    Known {
        name: "cache",
        meaning: "memory for file data and metadata at full size: 1M to 4G; it shrinks with the scale",
        set: |p, text| size(text, 1 << 20, 4 << 30).map(|bytes| p.cache_bytes = bytes),
        show: |p| show_size(p.cache_bytes),
    },
    Known {
        name: "buffer",
        meaning: "a segment buffer of lfs-… at full size: 256K to 1G; hot and cold data have one each; it shrinks with the \
                  scale",
        set: |p, text| size(text, 256 << 10, 1 << 30).map(|bytes| p.buffer_bytes = bytes),
        show: |p| show_size(p.buffer_bytes),
    },
    Known {
        name: "writes",
        meaning: "writes of lfs-… at full size: 1000 to 10000000; they shrink with the scale",
        set: |p, text| number(text, 1000, 10_000_000).map(|count| p.writes = count),
        show: |p| p.writes.to_string(),
    },
    Known {
        name: "dirty",
        meaning: "share of the cache that may be dirty, in percent: 1 to 90; at three quarters of it writing begins",
        set: |p, text| number(text, 1, 90).map(|percent| p.dirty_percent = percent),
        show: |p| format!("{} %", p.dirty_percent),
    },
    Known {
        name: "age",
        meaning: "a dirty block older than this is written back, in seconds: 1 to 86400",
        set: |p, text| number(text, 1, 86_400).map(|s| p.age_s = s),
        show: |p| format!("{} s", p.age_s),
    },
    Known {
        name: "commit",
        meaning: "metadata are written (checkpoints, in lfs-… and fac-…) this often at least, in seconds: 1 to 86400; 30 for \
                  cw-…, else 60",
        set: |p, text| number(text, 1, 86_400).map(|s| p.commit_s = Some(s)),
        show: |p| p.commit_s.map_or_else(|| "that of the experiment".to_owned(), |s| format!("{s} s")),
    },
    Known {
        name: "queue_depth",
        meaning: "commands at the drive at once in lfs-…, separated by commas: 1 to 32 (a drive with NCQ); cards take one",
        set: |p, text| list(text, |one| number(one, 1, 32)).map(|all| p.queue_depths = Some(all)),
        show: |p| match &p.queue_depths {
            Some(all) => all.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            None => "1".to_owned(),
        },
    },
    Known {
        name: "transfer",
        meaning: "largest request: 16K to 16M; a drive's own limit applies as well",
        set: |p, text| size(text, 16 << 10, 16 << 20).map(|bytes| p.transfer_bytes = bytes),
        show: |p| show_size(p.transfer_bytes),
    },
    Known {
        name: "read_ahead",
        meaning: "read-ahead of a sequential reader at most: 0 to 16M",
        set: |p, text| size(text, 0, 16 << 20).map(|bytes| p.read_ahead_bytes = bytes),
        show: |p| show_size(p.read_ahead_bytes),
    },
    Known {
        name: "coread",
        meaning: "what a miss of a small file brings at most in systems that co-write: 0 to 16M; the baselines read one file \
                  at a time",
        set: |p, text| size(text, 0, 16 << 20).map(|bytes| p.co_read_bytes = bytes),
        show: |p| show_size(p.co_read_bytes),
    },
    Known {
        name: "write_cache",
        meaning: "the drive's write cache: on (and never flushed, as the system of cw-… did), flushed (lfs-…, fac-…), off",
        set: |p, text| {
            let found = WriteCache::ALL.into_iter().find(|mode| mode.name() == text);
            found.map(|mode| p.write_cache = Some(mode)).ok_or_else(|| "on, flushed or off".to_owned())
        },
        show: |p| p.write_cache.map_or("that of the experiment", WriteCache::name).to_owned(),
    },
    Known {
        name: "cpu_percent",
        meaning: "processor time of calls, in percent of the 1 GHz machine's: 0 to 10000",
        set: |p, text| number(text, 0, 10_000).map(|percent| p.cpu_percent = percent),
        show: |p| format!("{} %", p.cpu_percent),
    },
    Known {
        name: "compile_ms",
        meaning: "processor time to compile one source, in milliseconds: 0 to 60000",
        set: |p, text| number(text, 0, 60_000).map(|ms| p.compile_ms = ms),
        show: |p| format!("{} ms", p.compile_ms),
    },
    Known {
        name: "memory",
        meaning: "memory for processes and files of saf-… at full size: 32M to 64G; it shrinks with the scale",
        set: |p, text| size(text, 32 << 20, 64 << 30).map(|bytes| p.memory_bytes = bytes),
        show: |p| show_size(p.memory_bytes),
    },
    Known {
        name: "area",
        meaning: "a swap area of saf at full size: 256K to 1G; it shrinks with the scale",
        set: |p, text| size(text, 256 << 10, 1 << 30).map(|bytes| p.area_bytes = bytes),
        show: |p| show_size(p.area_bytes),
    },
    Known {
        name: "position",
        meaning: "where the programs' directory of saf-… lies on the volume, or the heads of its logs, in percent: 0 to 90",
        set: |p, text| number(text, 0, 90).map(|percent| p.position = percent),
        show: |p| format!("{} %", p.position),
    },
    Known {
        name: "sweeps",
        meaning: "sweeps of SOR in saf-…: 1 to 10000",
        set: |p, text| number(text, 1, 10_000).map(|count| p.sweeps = Some(count)),
        show: |p| p.sweeps.map_or_else(|| "those of the experiment".to_owned(), |count| count.to_string()),
    },
];

impl Parameters {
    /// Returns the names and meanings of all parameters.
    pub fn known() -> impl Iterator<Item = (&'static str, &'static str)> {
        KNOWN.iter().map(|known| (known.name, known.meaning))
    }

    /// Sets one parameter from `NAME=VALUE`.
    ///
    /// # Errors
    /// [`LabError::Unknown`] lists what exists, [`LabError::Value`] says what can be given.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let (name, value) = assignment.split_once('=').unwrap_or((assignment, ""));
        let known = KNOWN.iter().find(|known| known.name == name.trim());
        let known = known.ok_or_else(|| LabError::unknown("parameter", name, KNOWN.iter().map(|known| known.name)))?;
        (known.set)(self, value.trim()).map_err(|problem| LabError::Value {
            name: known.name.to_owned(),
            value: value.trim().to_owned(),
            rule: format!("{problem} ({})", known.meaning),
        })
    }

    /// Returns all parameters as text, with units.
    pub fn show(&self) -> BTreeMap<String, String> {
        KNOWN.iter().map(|known| (known.name.to_owned(), (known.show)(self))).collect()
    }

    /// Returns the systems among `all` that were asked for; `usual` if none was.
    pub fn systems<S: Copy + fmt::Display>(&self, all: &[S], usual: &[S]) -> Vec<S> {
        let asked = self.systems.iter().filter_map(|name| all.iter().find(|system| system.to_string() == *name));
        let asked: Vec<S> = asked.copied().collect();
        if asked.is_empty() { usual.to_vec() } else { asked }
    }

    /// Returns the drives that were asked for; `usual` if none was.
    pub fn drives(&self, usual: &[&str]) -> Vec<String> {
        if self.drives.is_empty() { usual.iter().map(|name| (*name).to_owned()).collect() } else { self.drives.clone() }
    }

    /// Returns the processor times, scaled by `cpu_percent`.
    pub fn cpu(&self) -> Cpu {
        Cpu::PENTIUM_III.scaled(self.cpu_percent)
    }
}

/// Returns the names of all systems, by the experiments that compare them.
pub fn known_systems() -> [(&'static str, Vec<&'static str>); 3] {
    [
        ("cw-…", System::ALL.map(System::name).to_vec()),
        ("lfs-…", LogSystem::all().map(LogSystem::name).collect()),
        ("saf-…", SwapSystem::ALL.map(SwapSystem::name).to_vec()),
    ]
}

fn known_system(name: &str) -> Result<String, String> {
    let known: Vec<&str> = known_systems().into_iter().flat_map(|(_, names)| names).collect();
    if known.contains(&name) { Ok(name.to_owned()) } else { Err(LabError::unknown("system", name, known).to_string()) }
}

fn or_usual(names: &[String]) -> String {
    if names.is_empty() { "those of the experiment".to_owned() } else { names.join(", ") }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let all: Vec<T> =
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(parse).collect::<Result<_, _>>()?;
    if all.is_empty() { Err("at least one".to_owned()) } else { Ok(all) }
}

fn number<T: FromStr + PartialOrd>(text: &str, min: T, max: T) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(number) if number >= min && number <= max => Ok(number),
        Ok(_) => Err("it is out of range".to_owned()),
        Err(_) => Err("it is not such a number".to_owned()),
    }
}

/// Parses bytes with an optional K, M or G (powers of 1024).
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return None,
    };
    let value: f64 = digits.parse().ok()?;
    let bytes = value * (1_u64 << shift) as f64;
    (bytes >= 0.0 && bytes < (1_u64 << 53) as f64).then_some(bytes as u64)
}

fn size(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let bytes = parse_size(text).ok_or("it is not a size such as 128K or 12.8M")?;
    if (min..=max).contains(&bytes) { Ok(bytes) } else { Err("it is out of range".to_owned()) }
}

fn show_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{:.1} MiB", bytes as f64 / MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_shown() {
        let mut parameters = Parameters::default();
        for (assignment, name, shown) in [
            ("cache=160M", "cache", "160.0 MiB"),
            ("dirty = 40", "dirty", "40 %"),
            ("systems=ffs,cowrite-disksort", "systems", "ffs, cowrite-disksort"),
            ("utilization=0,30", "utilization", "0, 30 %"),
            ("write_cache=off", "write_cache", "off"),
            ("coread=0", "coread", "0 B"),
            ("dirs=near", "dirs", "near"),
            ("queue_depth=1,32", "queue_depth", "1, 32"),
        ] {
            parameters.set(assignment).unwrap();
            assert_eq!(parameters.show()[name], shown);
        }
    }

    #[test]
    fn the_default_cache_is_what_openbsd_gave_it() {
        assert_eq!(Parameters::default().show()["cache"], "12.8 MiB");
    }

    #[test]
    fn what_does_not_exist_lists_what_does() {
        let mut parameters = Parameters::default();
        let unknown = parameters.set("cash=1").unwrap_err().to_string();
        assert!(unknown.contains("`cash`") && unknown.contains("cache, buffer"), "{unknown}");
        let system = parameters.set("systems=zfs").unwrap_err().to_string();
        assert!(system.contains("ffs-paper, ffs, cowrite-paper, cowrite"), "{system}");
        for bad in [
            "cache",
            "cache=",
            "cache=-1",
            "cache=1T",
            "dirty=0",
            "utilization=95",
            "write_cache=maybe",
            "drives=,",
            "dirs=far",
        ] {
            assert!(parameters.set(bad).is_err(), "{bad}");
        }
        assert_eq!(parameters, Parameters::default());
    }
}
