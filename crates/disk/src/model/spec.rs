//! Drives as parameter files (TOML): the built-in ones, users' own, and single parameters set by name.
//!
//! A parameter is named as in the file, with its table: `rpm`, `seek.average_ms`, `cache.write`. [`PARAMETERS`] is the one
//! list of them, with meaning, unit and range; help texts and checks come from it. A specification that was loaded or
//! changed here is sound: the model neither overflows nor loops on it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// The largest drive file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bounds the time that fitting a seek curve takes.
const CYLINDERS_MAX: u64 = 2_000_000;
/// Fewer cylinders give a fitted seek curve nothing to fit.
const CYLINDERS_FITTED_MIN: u64 = 16;
const TRACK_SECTORS_MAX: u32 = 100_000;
const MS_MAX: f64 = 10_000.0;

/// What kind of drive a file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// A hard disk.
    Hdd,
}

/// A drive's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    /// What kind of drive this is.
    pub kind: DriveKind,
    /// One line for people.
    pub description: String,
    /// Advertised capacity.
    pub sectors: u64,
    /// Rotations per minute.
    pub rpm: u32,
    /// Surfaces with data.
    pub heads: u32,
    /// Switching to another head.
    pub head_switch_ms: f64,
    /// Settling before a write after a move of at most one cylinder.
    pub write_settle_short_ms: f64,
    /// Settling before a write after a longer move.
    pub write_settle_long_ms: f64,
    /// The electronics' share of each command.
    pub overhead_ms: f64,
    /// Bus rate in 10^6 bytes per second; `inf`: takes no time.
    pub bus_mb_s: f64,
    /// The largest command.
    pub transfer_sectors_max: u32,
    /// Commands the drive takes at once and chooses from; 1: no queueing.
    pub ncq_depth: u32,
    /// Zones by formula.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZoneFormula>,
    /// Zones one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Vec<ZoneSpec>>,
    /// Seek times.
    pub seek: SeekSpec,
    /// The buffer on board.
    pub cache: CacheSpec,
}

/// Zones of equal width whose tracks shrink by a power law from the outermost to the innermost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneFormula {
    /// Number of zones.
    pub count: u32,
    /// Cylinders in each.
    pub cylinders_each: u32,
    /// Sectors per track in the outermost zone.
    pub outer_sectors: u32,
    /// Sectors per track in the innermost zone.
    pub inner_sectors: u32,
    /// The power.
    pub exponent: f64,
    /// Skew from a track to the next of its cylinder.
    pub track_skew_ms: f64,
    /// Skew from a cylinder to the next.
    pub cylinder_skew_ms: f64,
}

/// One zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneSpec {
    /// Its outermost cylinder.
    pub first_cylinder: u32,
    /// Its innermost cylinder.
    pub last_cylinder: u32,
    /// Sectors per track.
    pub sectors: u32,
    /// Skew from a track to the next of its cylinder, in sectors.
    pub track_skew: u32,
    /// Skew from a cylinder to the next, in sectors.
    pub cylinder_skew: u32,
}

/// Seek times: three published figures, the constants of a fitted curve, or measured points.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeekSpec {
    /// To the next cylinder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track_ms: Option<f64>,
    /// Mean over all pairs of cylinders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_ms: Option<f64>,
    /// From the first cylinder to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_ms: Option<f64>,
    /// `a` of `a + b sqrt(d)`, for distances below the knee.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a_ms: Option<f64>,
    /// `b` of `a + b sqrt(d)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_ms: Option<f64>,
    /// `c` of `c + e d`, for distances from the knee on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub c_ms: Option<f64>,
    /// `e` of `c + e d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e_ms: Option<f64>,
    /// Where the curve becomes a line, in cylinders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<u32>,
    /// Distance in cylinders and time in ms; straight lines between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<Vec<(u32, f64)>>,
}

/// The buffer on board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSpec {
    /// Reads are answered from the buffer where it has the data.
    pub read: bool,
    /// After a read from the media the drive reads on.
    pub read_ahead: bool,
    /// Writes are done when they are in the buffer.
    pub write: bool,
    /// Streams that the buffer can hold.
    pub segments: u32,
    /// Sectors of each.
    pub segment_sectors: u32,
    /// How much may wait in the buffer to be written.
    pub dirty_kib: u32,
    /// From how many of the oldest extents the nearest is written next; 1: the oldest.
    pub destage_window: u32,
}

/// One parameter: name, meaning with unit, and the range it must lie in (numbers only).
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name, with its table.
    pub name: &'static str,
    /// What it is, with its unit.
    pub meaning: &'static str,
    /// The lowest sound value.
    pub min: f64,
    /// The highest sound value.
    pub max: f64,
}

const fn number(name: &'static str, meaning: &'static str, min: f64, max: f64) -> Parameter {
    Parameter { name, meaning, min, max }
}

const fn switch(name: &'static str, meaning: &'static str) -> Parameter {
    Parameter { name, meaning, min: 0.0, max: 0.0 }
}

/// Every parameter that can be set by name.
pub const PARAMETERS: &[Parameter] = &[
    number("sectors", "advertised capacity, sectors of 512 bytes", 1.0, (1_u64 << 40) as f64),
    number("rpm", "rotations per minute", 1.0, 100_000.0),
    number("heads", "surfaces with data", 1.0, 255.0),
    number("head_switch_ms", "switching to another head, ms", 0.0, MS_MAX),
    number("write_settle_short_ms", "settling before a write after a move of at most one cylinder, ms", 0.0, MS_MAX),
    number("write_settle_long_ms", "settling before a write after a longer move, ms", 0.0, MS_MAX),
    number("overhead_ms", "the electronics' share of each command, ms", 0.0, MS_MAX),
    number("bus_mb_s", "bus rate, 10^6 bytes per second; inf: takes no time", 0.001, f64::INFINITY),
    number("transfer_sectors_max", "the largest command, sectors", 8.0, 65_536.0),
    number("ncq_depth", "commands the drive chooses from; 1: no queueing", 1.0, 256.0),
    number("zones.count", "zones", 1.0, 1000.0),
    number("zones.cylinders_each", "cylinders in each zone", 1.0, CYLINDERS_MAX as f64),
    number("zones.outer_sectors", "sectors per track in the outermost zone", 1.0, TRACK_SECTORS_MAX as f64),
    number("zones.inner_sectors", "sectors per track in the innermost zone", 1.0, TRACK_SECTORS_MAX as f64),
    number("zones.exponent", "power of the shrinking from outer to inner", 0.01, 100.0),
    number("zones.track_skew_ms", "skew from a track to the next of its cylinder, ms", 0.0, MS_MAX),
    number("zones.cylinder_skew_ms", "skew from a cylinder to the next, ms", 0.0, MS_MAX),
    number("seek.track_ms", "seek to the next cylinder, ms", 0.0, MS_MAX),
    number("seek.average_ms", "mean seek over all pairs of cylinders, ms", 0.0, MS_MAX),
    number("seek.full_ms", "seek from the first cylinder to the last, ms", 0.0, MS_MAX),
    number("seek.a_ms", "a of a + b sqrt(d), ms, below the knee", -MS_MAX, MS_MAX),
    number("seek.b_ms", "b of a + b sqrt(d), ms", 0.0, MS_MAX),
    number("seek.c_ms", "c of c + e d, ms, from the knee on", -MS_MAX, MS_MAX),
    number("seek.e_ms", "e of c + e d, ms per cylinder", 0.0, MS_MAX),
    number("seek.knee", "where the curve becomes a line, cylinders", 2.0, CYLINDERS_MAX as f64),
    switch("cache.read", "reads are answered from the buffer: on, off"),
    switch("cache.read_ahead", "the drive reads on after a read: on, off"),
    switch("cache.write", "writes are done when in the buffer: on, off"),
    number("cache.segments", "streams the buffer holds", 1.0, 1024.0),
    number("cache.segment_sectors", "sectors of each stream", 1.0, (1 << 24) as f64),
    number("cache.dirty_kib", "data that may wait in the buffer to be written, KiB", 0.0, (1 << 20) as f64),
    number("cache.destage_window", "extents from which the nearest is written next; 1: the oldest", 1.0, 256.0),
];

/// Sets `cache.read`, `cache.read_ahead` and `cache.write` at once.
pub const CACHE: &str = "cache";

/// The built-in drives.
const PRESETS: &[(&str, &str)] = &[
    ("mpg3307at", include_str!("drives/mpg3307at.toml")),
    ("mpg3307at-as-published", include_str!("drives/mpg3307at-as-published.toml")),
    ("st3160812as", include_str!("drives/st3160812as.toml")),
    ("hds721616pla380", include_str!("drives/hds721616pla380.toml")),
    ("c9m", include_str!("drives/c9m.toml")),
];

/// Why a drive cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Neither a built-in drive nor a file.
    #[error("there is no drive `{name}`: it is neither a file nor one of {}", names().collect::<Vec<_>>().join(", "))]
    UnknownDrive {
        /// What was asked for.
        name: String,
    },
    /// A name that is no parameter.
    #[error("there is no parameter `{name}`; there are {CACHE} (on, off), {}", parameter_names())]
    UnknownParameter {
        /// What was asked for.
        name: String,
    },
    /// A value that its parameter cannot have.
    #[error("{parameter}={value}: {problem}")]
    Value {
        /// The parameter.
        parameter: String,
        /// The value as given.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A drive file that is wrong.
    #[error("{file}, line {line}, {field}: {problem}")]
    Malformed {
        /// The file, or the built-in drive's name.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A drive file that cannot be read.
    #[error("reading the drive file {file}: {error}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        error: io::Error,
    },
}

/// What is wrong with a specification: the parameter, and a sentence.
#[derive(Debug)]
pub(crate) struct Unsound {
    pub(crate) field: String,
    pub(crate) problem: String,
}

impl Unsound {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Unsound {
        Unsound { field: field.into(), problem: problem.into() }
    }
}

/// The built-in drives' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

fn parameter_names() -> String {
    PARAMETERS.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

impl DriveSpec {
    /// A built-in drive.
    ///
    /// # Errors
    /// [`SpecError::UnknownDrive`] names those that exist.
    pub fn preset(name: &str) -> Result<DriveSpec, SpecError> {
        match PRESETS.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => DriveSpec::parse(text, name),
            None => Err(SpecError::UnknownDrive { name: name.into() }),
        }
    }

    /// A built-in drive, or a drive file.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn load(name_or_path: &str) -> Result<DriveSpec, SpecError> {
        let path = Path::new(name_or_path);
        let looks_like_a_file = name_or_path.contains('/') || name_or_path.ends_with(".toml");
        if names().any(|known| known == name_or_path) || !(looks_like_a_file || path.exists()) {
            return DriveSpec::preset(name_or_path);
        }
        let text = read_bounded(path).map_err(|error| SpecError::Io { file: name_or_path.into(), error })?;
        DriveSpec::parse(&text, name_or_path)
    }

    /// A drive from the text of its file; `file` is for messages.
    ///
    /// # Errors
    /// [`SpecError::Malformed`].
    pub fn parse(text: &str, file: &str) -> Result<DriveSpec, SpecError> {
        let malformed = |line, field, problem| SpecError::Malformed { file: file.to_owned(), line, field, problem };
        let spec: DriveSpec = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            let field = text.lines().nth(line - 1).map_or("", |l| l.split('=').next().unwrap_or(l).trim());
            malformed(line, field.to_owned(), error.message().to_owned())
        })?;
        match spec.check() {
            Ok(()) => Ok(spec),
            Err(Unsound { field, problem }) => Err(malformed(line_of(text, &field), field, problem)),
        }
    }

    /// Sets one parameter by name; `on` and `off` are understood for switches.
    ///
    /// # Errors
    /// [`SpecError::UnknownParameter`] names those that exist; [`SpecError::Value`]. The specification is unchanged then.
    pub fn set(&mut self, parameter: &str, value: &str) -> Result<(), SpecError> {
        let refuse = |problem: String| SpecError::Value { parameter: parameter.into(), value: value.into(), problem };
        if parameter == CACHE {
            let on = parse_switch(value).ok_or_else(|| refuse("must be on or off".into()))?;
            (self.cache.read, self.cache.read_ahead, self.cache.write) = (on, on, on);
            return Ok(());
        }
        if !PARAMETERS.iter().any(|known| known.name == parameter) {
            return Err(SpecError::UnknownParameter { name: parameter.into() });
        }
        let mut all = Table::try_from(&*self).expect("a specification is a table");
        let (table, key) = match parameter.split_once('.') {
            Some((table, key)) => match all.get_mut(table).and_then(Value::as_table_mut) {
                Some(table) => (table, key),
                None => return Err(refuse(format!("this drive has no [{table}]"))),
            },
            None => (&mut all, parameter),
        };
        table.insert(key.into(), parse_value(value).ok_or_else(|| refuse("must be a number, on or off".into()))?);
        let changed: DriveSpec = all.try_into().map_err(|e: toml::de::Error| refuse(e.message().to_owned()))?;
        changed.check().map_err(|Unsound { field, problem }| match field == parameter {
            true => refuse(problem),
            false => refuse(format!("{field}: {problem}")),
        })?;
        *self = changed;
        Ok(())
    }

    /// The text of a drive file for this drive.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification is a table")
    }

    /// Zones in order, whichever way they are given.
    pub(crate) fn zone_table(&self) -> Vec<ZoneSpec> {
        match (&self.zones, &self.zone) {
            (Some(formula), _) => formula.table(self.rotation_ns()),
            (None, zones) => zones.clone().unwrap_or_default(),
        }
    }

    /// One rotation.
    pub fn rotation_ns(&self) -> u64 {
        let rpm = u64::from(self.rpm);
        (60_000_000_000 + rpm / 2) / rpm
    }

    /// Cylinders, gaps between zones included.
    pub(crate) fn cylinders(&self) -> u64 {
        match (&self.zones, &self.zone) {
            (Some(formula), _) => u64::from(formula.count) * u64::from(formula.cylinders_each),
            (None, Some(zones)) => zones.last().map_or(0, |z| u64::from(z.last_cylinder) + 1),
            (None, None) => 0,
        }
    }

    /// Finds what the model cannot work with.
    fn check(&self) -> Result<(), Unsound> {
        self.check_ranges()?;
        self.check_zones()?;
        let held: u64 = self.zone_table().iter().map(|z| z.sectors_of(self.heads)).sum();
        if held < self.sectors {
            return Err(Unsound::new("sectors", format!("the zones hold only {held} sectors")));
        }
        let curve = super::hdd::seek::SeekCurve::new(&self.seek, self.cylinders())?;
        self.check_skews(curve.ns(1))
    }

    /// Every number lies in the range that [`PARAMETERS`] gives it.
    fn check_ranges(&self) -> Result<(), Unsound> {
        let all = Table::try_from(self).map_err(|e| Unsound::new("drive", e.to_string()))?;
        for parameter in PARAMETERS {
            let value = match parameter.name.split_once('.') {
                Some((table, key)) => all.get(table).and_then(|t| t.get(key)),
                None => all.get(parameter.name),
            };
            let number = match value {
                Some(Value::Integer(number)) => *number as f64,
                Some(Value::Float(number)) => *number,
                _ => continue,
            };
            if !(parameter.min..=parameter.max).contains(&number) {
                let problem = format!("must be from {} to {}, is {number}", parameter.min, parameter.max);
                return Err(Unsound::new(parameter.name, problem));
            }
        }
        Ok(())
    }

    fn check_zones(&self) -> Result<(), Unsound> {
        if self.zones.is_some() == self.zone.is_some() {
            return Err(Unsound::new("zones", "give either [zones] (a formula) or zone = [ … ] (one by one)"));
        }
        if self.cylinders() > CYLINDERS_MAX {
            let problem = format!("{} cylinders; at most {CYLINDERS_MAX} are supported", self.cylinders());
            return Err(Unsound::new("zones.cylinders_each", problem));
        }
        if let Some(formula) = &self.zones
            && formula.inner_sectors > formula.outer_sectors
        {
            return Err(Unsound::new("zones.inner_sectors", "inner tracks cannot hold more than outer ones"));
        }
        let mut next = 0;
        for zone in self.zone.iter().flatten() {
            let in_order = zone.first_cylinder >= next && zone.last_cylinder >= zone.first_cylinder;
            if !in_order || u64::from(zone.last_cylinder) >= CYLINDERS_MAX {
                let (first, last) = (zone.first_cylinder, zone.last_cylinder);
                return Err(Unsound::new("zone", format!("cylinders {first} to {last} are not in ascending order")));
            }
            if !(1..=TRACK_SECTORS_MAX).contains(&zone.sectors) {
                let problem = format!("must be from 1 to {TRACK_SECTORS_MAX}, is {}", zone.sectors);
                return Err(Unsound::new("zone.sectors", problem));
            }
            next = zone.last_cylinder + 1;
        }
        match self.zone.as_ref().is_some_and(Vec::is_empty) {
            true => Err(Unsound::new("zone", "there must be at least one zone")),
            false => Ok(()),
        }
    }

    /// A skew that is shorter than the move it covers costs a rotation at every crossing.
    fn check_skews(&self, track_seek_ns: u64) -> Result<(), Unsound> {
        let settle = ms_to_ns(self.write_settle_short_ms);
        let switch = ms_to_ns(self.head_switch_ms);
        let (track, cylinder) = match self.zones {
            Some(_) => ("zones.track_skew_ms", "zones.cylinder_skew_ms"),
            None => ("zone.track_skew", "zone.cylinder_skew"),
        };
        for zone in self.zone_table() {
            let skew_ns = |skew: u32| u64::from(skew) * self.rotation_ns() / u64::from(zone.sectors);
            let head_ns = switch + settle;
            let needs = |field, what: &str, ns: u64, skew| {
                let (ms, has) = (ns as f64 / 1e6, skew_ns(skew) as f64 / 1e6);
                let zone = zone.first_cylinder;
                let problem = format!(
                    "{what} takes {ms} ms to settle for a write, but the skew of the zone at cylinder {zone} is {has} ms: every crossing would lose a rotation"
                );
                Err(Unsound::new(field, problem))
            };
            if self.heads > 1 && skew_ns(zone.track_skew) < head_ns {
                return needs(track, "a head switch", head_ns, zone.track_skew);
            }
            let step_ns = track_seek_ns.max(if self.heads > 1 { switch } else { 0 }) + settle;
            if zone.last_cylinder > zone.first_cylinder && skew_ns(zone.cylinder_skew) < step_ns {
                return needs(cylinder, "a step to the next cylinder", step_ns, zone.cylinder_skew);
            }
        }
        Ok(())
    }
}

impl ZoneFormula {
    fn table(&self, rotation_ns: u64) -> Vec<ZoneSpec> {
        let zone = |i: u32| {
            let sectors = self.track_sectors(i);
            let skew = |ms: f64| (ms_to_ns(ms) * u64::from(sectors)).div_ceil(rotation_ns) as u32;
            let first_cylinder = i * self.cylinders_each;
            ZoneSpec {
                first_cylinder,
                last_cylinder: first_cylinder + self.cylinders_each - 1,
                sectors,
                track_skew: skew(self.track_skew_ms),
                cylinder_skew: skew(self.cylinder_skew_ms),
            }
        };
        (0..self.count).map(zone).collect()
    }

    fn track_sectors(&self, zone: u32) -> u32 {
        let (outer, inner) = (f64::from(self.outer_sectors), f64::from(self.inner_sectors));
        let inward = if self.count > 1 { f64::from(zone) / f64::from(self.count - 1) } else { 0.0 };
        (outer - (outer - inner) * inward.powf(self.exponent) + 0.5).floor() as u32
    }
}

impl ZoneSpec {
    fn sectors_of(&self, heads: u32) -> u64 {
        u64::from(self.last_cylinder - self.first_cylinder + 1) * u64::from(heads) * u64::from(self.sectors)
    }
}

impl SeekSpec {
    /// Refuses a fit where there is nothing to fit.
    pub(crate) fn check_cylinders(cylinders: u64) -> Result<(), Unsound> {
        match cylinders < CYLINDERS_FITTED_MIN {
            true => Err(Unsound::new("seek", format!("a drive of {cylinders} cylinders needs seek.points"))),
            false => Ok(()),
        }
    }
}

/// Milliseconds as whole nanoseconds, rounded half up.
pub(crate) fn ms_to_ns(ms: f64) -> u64 {
    (ms * 1e6 + 0.5).floor().max(0.0) as u64
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" => Some(true),
        "off" | "false" | "no" => Some(false),
        _ => None,
    }
}

fn parse_value(text: &str) -> Option<Value> {
    let switch = parse_switch(text).map(Value::Boolean);
    let integer = || text.parse().ok().map(Value::Integer);
    let float = || text.parse().ok().map(Value::Float);
    switch.or_else(integer).or_else(float)
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes: no drive file"))),
        false => Ok(text),
    }
}

/// The line on which `field` (`table.key` or `key`) is given; that of its table, or the first, if it is not.
fn line_of(text: &str, field: &str) -> usize {
    let (table, key) = field.split_once('.').unwrap_or(("", field));
    let mut here = "";
    let mut table_line = 1;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            here = header.trim_matches(['[', ']']).trim();
            if here == field || here == table {
                table_line = number;
            }
        }
        let name = line.split_once('=').map_or("", |(name, _)| name.trim());
        if here == table && name == key {
            return number;
        }
        if here.is_empty() && !table.is_empty() && name == table {
            table_line = number;
        }
    }
    table_line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_drive_is_sound() {
        for name in names() {
            let spec = DriveSpec::preset(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(DriveSpec::parse(&toml::to_string(&spec).unwrap(), name).unwrap(), spec);
        }
    }

    #[test]
    fn zones_follow_the_formula() {
        let sectors =
            |name| -> Vec<u32> { DriveSpec::preset(name).unwrap().zone_table().iter().map(|z| z.sectors).collect() };
        let mpg = [760, 749, 733, 715, 695, 674, 653, 630, 606, 582, 556, 531, 504, 477, 450];
        assert_eq!(sectors("mpg3307at"), mpg);
        let st = [1452, 1426, 1391, 1350, 1306, 1259, 1210, 1158, 1105, 1050, 993, 935, 875, 815, 753, 690];
        assert_eq!(sectors("st3160812as"), st);
        let hds = [
            1447, 1442, 1434, 1423, 1409, 1394, 1378, 1360, 1340, 1320, 1298, 1275, 1251, 1226, 1200, 1173, 1145, 1117,
            1087, 1057, 1025, 993, 961, 927, 893, 858, 822, 786, 749, 711,
        ];
        assert_eq!(sectors("hds721616pla380"), hds);
    }

    #[test]
    fn skews_and_sizes_are_those_of_the_sheet() {
        for (name, cylinders, held, outer, inner) in [
            ("mpg3307at", 32_235, 60_053_805, (96, 124), (57, 73)),
            ("mpg3307at-as-published", 32_235, 60_053_805, (110, 146), (65, 87)),
            ("st3160812as", 140_752, 312_610_192, (227, 227), (108, 108)),
            ("hds721616pla380", 139_860, 321_687_324, (244, 244), (120, 120)),
            ("c9m", 6_962, 17_930_568, (97, 133), (88, 80)),
        ] {
            let spec = DriveSpec::preset(name).unwrap();
            let zones = spec.zone_table();
            let skews = |zone: &ZoneSpec| (zone.track_skew, zone.cylinder_skew);
            assert_eq!(spec.cylinders(), cylinders, "{name}");
            assert_eq!(zones.iter().map(|z| z.sectors_of(spec.heads)).sum::<u64>(), held, "{name}");
            assert_eq!((skews(&zones[0]), skews(zones.last().unwrap())), (outer, inner), "{name}");
        }
    }

    #[test]
    fn parameters_are_set_by_name() {
        let mut spec = DriveSpec::preset("st3160812as").unwrap();
        for (parameter, value) in [
            ("rpm", "5400"),
            ("seek.average_ms", "9"),
            ("cache.write", "off"),
            ("bus_mb_s", "inf"),
            ("ncq_depth", "32"),
        ] {
            spec.set(parameter, value).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!((spec.rpm, spec.seek.average_ms, spec.cache.write), (5400, Some(9.0), false));
        spec.set("cache", "on").unwrap();
        assert!(spec.cache.write && spec.cache.read && spec.cache.read_ahead);
    }

    #[test]
    fn every_parameter_exists_and_every_field_is_a_parameter() {
        let mut spec = DriveSpec::preset("mpg3307at").unwrap();
        let curve =
            SeekSpec { a_ms: Some(0.0), b_ms: Some(0.0), c_ms: Some(0.0), e_ms: Some(0.0), ..spec.seek.clone() };
        spec.seek = SeekSpec { knee: Some(2), ..curve };
        let all = Table::try_from(&spec).unwrap();
        let mut fields = Vec::new();
        for (key, value) in &all {
            match value {
                Value::Table(table) => fields.extend(table.keys().map(|inner| format!("{key}.{inner}"))),
                _ => fields.push(key.clone()),
            }
        }
        fields.retain(|field| field != "kind" && field != "description");
        fields.sort();
        let mut known: Vec<String> = PARAMETERS.iter().map(|p| p.name.to_owned()).collect();
        known.sort();
        assert_eq!(fields, known);
    }

    #[test]
    fn wrong_values_are_refused_and_change_nothing() {
        let mut spec = DriveSpec::preset("mpg3307at").unwrap();
        let before = spec.clone();
        for (parameter, value, expected) in [
            ("rpm", "0", "must be from 1 to 100000"),
            ("rpm", "fast", "must be a number"),
            ("rpm", "-1", "rpm=-1"),
            ("rpm", "nan", "rpm=nan"),
            ("speed", "1", "there is no parameter `speed`; there are cache (on, off), sectors, rpm"),
            ("sectors", "60053806", "the zones hold only 60053805"),
            ("zones.track_skew_ms", "1.1", "every crossing would lose a rotation"),
            ("zones.cylinders_each", "2000000", "at most 2000000"),
            ("seek.average_ms", "20", "seek.average_ms"),
            ("seek.a_ms", "1", "seek"),
            ("cache", "maybe", "must be on or off"),
            ("overhead_ms", "inf", "overhead_ms=inf"),
        ] {
            let error = spec.set(parameter, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{parameter}={value}: {error}");
            assert_eq!(spec, before);
        }
    }

    #[test]
    fn malformed_files_are_told_with_line_and_field() {
        let good = toml::to_string(&DriveSpec::preset("mpg3307at").unwrap()).unwrap();
        for (from, to, expected) in [
            ("rpm = 5400", "rpm = \"x\"", ", rpm: "),
            ("rpm = 5400", "rmp = 5400", ", rmp: unknown field `rmp`"),
            ("average_ms = 9.5", "average_ms = 99.5", ", seek.average_ms: "),
            ("outer_sectors = 760", "outer_sectors = 0", ", zones.outer_sectors: must be from 1"),
            ("kind = \"hdd\"", "kind = \"tape\"", ", kind: unknown variant `tape`"),
            ("heads = 3", "heads = ", "heads"),
        ] {
            assert!(good.contains(from), "{from}");
            let text = good.replace(from, to);
            let error = DriveSpec::parse(&text, "my.toml").unwrap_err().to_string();
            let line = 1 + text.lines().position(|l| l == to).unwrap();
            assert!(error.starts_with(&format!("my.toml, line {line}, ")), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_drive_that_does_not_exist_is_told_with_those_that_do() {
        let error = DriveSpec::load("wd40").unwrap_err().to_string();
        assert!(error.contains("mpg3307at, mpg3307at-as-published, st3160812as, hds721616pla380, c9m"), "{error}");
        let error = DriveSpec::load("no/such.toml").unwrap_err().to_string();
        assert!(error.contains("reading the drive file no/such.toml"), "{error}");
    }
}
