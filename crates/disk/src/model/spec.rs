//! Drives as parameter files (TOML): built-in drives, users' own, and single parameters set by name.
//!
//! A file names the `kind` of drive it describes; each kind has its own parameters ([`parameters`]), named as in the
//! file, with their table: `rpm`, `seek.average_ms`, `cache.write`. The parameter lists give meaning, unit and range;
//! help texts and checks are made from them. A specification that was loaded or changed here is sound: the model
//! neither overflows nor loops on it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::hdd::spec::HddSpec;
pub use super::parameter::{DriveKind, Parameter};
use super::parameter::{KindSpec, Unsound};
use super::sd::spec::SdSpec;
use super::ssd::spec::SsdSpec;

/// The largest drive file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The parameters of one drive.
#[derive(Debug, Clone, PartialEq)]
pub enum DriveSpec {
    /// The parameters of a hard disk.
    Hdd(HddSpec),
    /// The parameters of a solid state disk.
    Ssd(SsdSpec),
    /// The parameters of an SD card.
    Sd(SdSpec),
}

/// The name that sets all switches of `cache` at once.
pub const CACHE: &str = "cache";

/// Names and texts of the built-in drives.
const PRESETS: &[(&str, &str)] = &[
    ("mpg3307at", include_str!("drives/mpg3307at.toml")),
    ("mpg3307at-as-published", include_str!("drives/mpg3307at-as-published.toml")),
    ("st3160812as", include_str!("drives/st3160812as.toml")),
    ("hds721616pla380", include_str!("drives/hds721616pla380.toml")),
    ("c9m", include_str!("drives/c9m.toml")),
    ("samsung-slc-64", include_str!("drives/samsung-slc-64.toml")),
    ("samsung-slc-64-page", include_str!("drives/samsung-slc-64-page.toml")),
    ("sd16-slow", include_str!("drives/sd16-slow.toml")),
    ("sd16-mid", include_str!("drives/sd16-mid.toml")),
    ("sd16-good", include_str!("drives/sd16-good.toml")),
];

/// An error in naming, reading or changing a drive's parameters.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The name is neither a built-in drive's nor a file's.
    #[error("there is no drive `{name}`: it is neither a file nor one of {}", names().collect::<Vec<_>>().join(", "))]
    UnknownDrive {
        /// The name as given.
        name: String,
    },
    /// The name is not a parameter's.
    #[error("there is no parameter `{name}`; there are {CACHE} (on, off), {}", parameter_names(*kind))]
    UnknownParameter {
        /// The name as given.
        name: String,
        /// The kind of drive that was to be changed.
        kind: DriveKind,
    },
    /// The value is not possible for its parameter.
    #[error("{parameter}={value}: {problem}")]
    Value {
        /// The name of the parameter.
        parameter: String,
        /// The value as given.
        value: String,
        /// The reason, as a sentence.
        problem: String,
    },
    /// A drive file has an error.
    #[error("{file}, line {line}, {field}: {problem}")]
    Malformed {
        /// The file, or the built-in drive's name.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The name of the field.
        field: String,
        /// The reason, as a sentence.
        problem: String,
    },
    /// The drive file cannot be read.
    #[error("reading the drive file {file}: {error}")]
    Io {
        /// The path of the file.
        file: String,
        /// The error of the host file system.
        error: io::Error,
    },
}

impl From<Unsound> for SpecError {
    /// Makes the error of a specification that did not come from a file.
    fn from(unsound: Unsound) -> SpecError {
        SpecError::Value { parameter: unsound.field, value: String::new(), problem: unsound.problem }
    }
}

/// Returns the names of the built-in drives.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Returns every parameter of this kind of drive that can be set by name.
pub fn parameters(kind: DriveKind) -> impl Iterator<Item = &'static Parameter> {
    let lists = match kind {
        DriveKind::Hdd => HddSpec::PARAMETERS,
        DriveKind::Ssd => SsdSpec::PARAMETERS,
        DriveKind::Sd => SdSpec::PARAMETERS,
    };
    lists.iter().copied().flatten()
}

fn parameter_names(kind: DriveKind) -> String {
    parameters(kind).map(|p| p.name).collect::<Vec<_>>().join(", ")
}

impl DriveSpec {
    /// Returns a built-in drive.
    ///
    /// # Errors
    /// [`SpecError::UnknownDrive`] names those that exist.
    pub fn preset(name: &str) -> Result<DriveSpec, SpecError> {
        match PRESETS.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => DriveSpec::parse(text, name),
            None => Err(SpecError::UnknownDrive { name: name.into() }),
        }
    }

    /// Returns a built-in drive, or reads a drive file.
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

    /// Parses the text of a drive file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`SpecError::Malformed`].
    pub fn parse(text: &str, file: &str) -> Result<DriveSpec, SpecError> {
        match parse_as::<Head>(text, file)?.kind {
            DriveKind::Hdd => parse_checked(text, file).map(DriveSpec::Hdd),
            DriveKind::Ssd => parse_checked(text, file).map(DriveSpec::Ssd),
            DriveKind::Sd => parse_checked(text, file).map(DriveSpec::Sd),
        }
    }

    /// Sets one parameter by name; `on` and `off` are understood for switches.
    ///
    /// # Errors
    /// [`SpecError::UnknownParameter`] names those that exist; [`SpecError::Value`]. The specification is unchanged
    /// then.
    pub fn set(&mut self, parameter: &str, value: &str) -> Result<(), SpecError> {
        if parameter != CACHE && !parameters(self.kind()).any(|known| known.name == parameter) {
            return Err(SpecError::UnknownParameter { name: parameter.into(), kind: self.kind() });
        }
        let changed = match self {
            DriveSpec::Hdd(spec) => change(spec, parameter, value),
            DriveSpec::Ssd(spec) => change(spec, parameter, value),
            DriveSpec::Sd(spec) => change(spec, parameter, value),
        };
        changed.map_err(|problem| SpecError::Value { parameter: parameter.into(), value: value.into(), problem })
    }

    /// Turns the write cache off: a write is then done when it is on the media.
    pub fn write_through(&mut self) {
        match self {
            DriveSpec::Hdd(spec) => spec.cache.write = false,
            DriveSpec::Ssd(spec) => spec.cache.write = false,
            // A card completes a write only when it is on the media.
            DriveSpec::Sd(_) => {}
        }
    }

    /// Returns the text of a drive file for this drive.
    pub fn to_toml(&self) -> String {
        let text = match self {
            DriveSpec::Hdd(spec) => toml::to_string(spec),
            DriveSpec::Ssd(spec) => toml::to_string(spec),
            DriveSpec::Sd(spec) => toml::to_string(spec),
        };
        text.expect("a specification is a table")
    }

    /// Returns the kind of this drive.
    pub fn kind(&self) -> DriveKind {
        match self {
            DriveSpec::Hdd(_) => DriveKind::Hdd,
            DriveSpec::Ssd(_) => DriveKind::Ssd,
            DriveSpec::Sd(_) => DriveKind::Sd,
        }
    }

    /// Returns the one-line description for users.
    pub fn description(&self) -> &str {
        match self {
            DriveSpec::Hdd(spec) => &spec.description,
            DriveSpec::Ssd(spec) => &spec.description,
            DriveSpec::Sd(spec) => &spec.description,
        }
    }

    /// Returns the advertised capacity in sectors.
    pub fn sectors(&self) -> u64 {
        match self {
            DriveSpec::Hdd(spec) => spec.sectors,
            DriveSpec::Ssd(spec) => spec.sectors,
            DriveSpec::Sd(spec) => spec.sectors,
        }
    }

    /// Returns the size of the largest command in sectors.
    pub fn transfer_sectors_max(&self) -> u32 {
        match self {
            DriveSpec::Hdd(spec) => spec.transfer_sectors_max,
            DriveSpec::Ssd(spec) => spec.transfer_sectors_max,
            DriveSpec::Sd(spec) => spec.transfer_sectors_max,
        }
    }

    /// Returns how many commands the drive takes at once; 1: no queueing.
    pub fn ncq_depth(&self) -> u32 {
        match self {
            DriveSpec::Hdd(spec) => spec.ncq_depth,
            DriveSpec::Ssd(spec) => spec.ncq_depth,
            DriveSpec::Sd(_) => 1,
        }
    }

    /// Returns true if a write may complete before it is on the media.
    pub fn has_volatile_cache(&self) -> bool {
        match self {
            DriveSpec::Hdd(spec) => spec.cache.write && spec.cache.dirty_kib > 0,
            DriveSpec::Ssd(spec) => spec.cache.write && spec.cache.dirty_kib > 0,
            DriveSpec::Sd(_) => false,
        }
    }

    /// Returns true if the drive takes discards (TRIM).
    pub fn has_trim(&self) -> bool {
        match self {
            DriveSpec::Hdd(_) => false,
            DriveSpec::Ssd(spec) => spec.trim,
            DriveSpec::Sd(spec) => spec.trim,
        }
    }
}

/// The fields common to all drive files.
#[derive(Deserialize)]
struct Head {
    kind: DriveKind,
}

fn parse_as<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, SpecError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let field = text.lines().nth(line - 1).map_or("", |l| l.split('=').next().unwrap_or(l).trim());
        let problem = error.message().to_owned();
        SpecError::Malformed { file: file.to_owned(), line, field: field.to_owned(), problem }
    })
}

fn parse_checked<S: KindSpec>(text: &str, file: &str) -> Result<S, SpecError> {
    let spec: S = parse_as(text, file)?;
    match check(&spec) {
        Ok(()) => Ok(spec),
        Err(Unsound { field, problem }) => {
            Err(SpecError::Malformed { file: file.to_owned(), line: line_of(text, &field), field, problem })
        }
    }
}

/// Sets one parameter, or all switches of the cache. Returns the error in the value as a sentence and then changes
/// nothing.
fn change<S: KindSpec>(spec: &mut S, parameter: &str, value: &str) -> Result<(), String> {
    let mut all = Table::try_from(&*spec).expect("a specification is a table");
    if parameter == CACHE {
        if S::CACHE_SWITCHES.is_empty() {
            return Err("this drive has no cache".into());
        }
        let on = parse_switch(value).ok_or("must be on or off")?;
        for switch in S::CACHE_SWITCHES {
            put(&mut all, switch, Value::Boolean(on))?;
        }
    } else {
        put(&mut all, parameter, parse_value(value))?;
    }
    let changed: S = all.try_into().map_err(|error: toml::de::Error| match parse_value(value) {
        Value::String(_) => format!("must be a number, on or off, or a word that is known here: {}", error.message()),
        _ => error.message().to_owned(),
    })?;
    check(&changed).map_err(|Unsound { field, problem }| match field == parameter {
        true => problem,
        false => format!("{field}: {problem}"),
    })?;
    *spec = changed;
    Ok(())
}

fn put(all: &mut Table, parameter: &str, value: Value) -> Result<(), String> {
    let (table, key) = match parameter.split_once('.') {
        Some((table, key)) => match all.get_mut(table).and_then(Value::as_table_mut) {
            Some(table) => (table, key),
            None => return Err(format!("this drive has no [{table}]")),
        },
        None => (all, parameter),
    };
    table.insert(key.into(), value);
    Ok(())
}

/// Refuses parameters out of range or that the model cannot work with.
fn check<S: KindSpec>(spec: &S) -> Result<(), Unsound> {
    let all = Table::try_from(spec).map_err(|e| Unsound::new("drive", e.to_string()))?;
    S::PARAMETERS.iter().copied().flatten().try_for_each(|parameter| check_range(&all, parameter))?;
    spec.check()
}

/// Refuses a number outside the range of its parameter.
fn check_range(all: &Table, parameter: &Parameter) -> Result<(), Unsound> {
    let value = match parameter.name.split_once('.') {
        Some((table, key)) => all.get(table).and_then(|t| t.get(key)),
        None => all.get(parameter.name),
    };
    let number = match value {
        Some(Value::Integer(number)) => *number as f64,
        Some(Value::Float(number)) => *number,
        _ => return Ok(()),
    };
    match (parameter.min..=parameter.max).contains(&number) {
        true => Ok(()),
        false => {
            let problem = format!("must be from {} to {}, is {number}", parameter.min, parameter.max);
            Err(Unsound::new(parameter.name, problem))
        }
    }
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" => Some(true),
        "off" | "false" | "no" => Some(false),
        _ => None,
    }
}

fn parse_value(text: &str) -> Value {
    let switch = parse_switch(text).map(Value::Boolean);
    let integer = || text.parse().ok().map(Value::Integer);
    let float = || text.parse().ok().map(Value::Float);
    switch.or_else(integer).or_else(float).unwrap_or_else(|| Value::String(text.to_owned()))
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes: no drive file"))),
        false => Ok(text),
    }
}

/// Returns the line on which `field` (`table.key` or `key`) is given; that of its table, or the first, if it is not.
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
    use serde::Serialize;

    use super::super::hdd::spec::SeekSpec;
    use super::super::hdd::spec::tests::preset;
    use super::*;

    #[test]
    fn every_built_in_drive_is_sound() {
        for name in names() {
            let spec = DriveSpec::preset(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(DriveSpec::parse(&spec.to_toml(), name).unwrap(), spec);
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
        let DriveSpec::Hdd(set) = &spec else { panic!("{spec:?}") };
        assert_eq!((set.rpm, set.seek.average_ms, set.cache.write), (5400, Some(9.0), false));
        assert!(!spec.has_volatile_cache());
        spec.set("cache", "on").unwrap();
        let DriveSpec::Hdd(set) = &spec else { panic!("{spec:?}") };
        assert!(set.cache.write && set.cache.read && set.cache.read_ahead);
        spec.write_through();
        assert!(!spec.has_volatile_cache());
    }

    /// Returns every field of a drive file but `kind` and `description`, with its table.
    fn fields_of(spec: &impl Serialize) -> Vec<String> {
        let mut fields = Vec::new();
        for (key, value) in &Table::try_from(spec).unwrap() {
            match value {
                Value::Table(table) => fields.extend(table.keys().map(|inner| format!("{key}.{inner}"))),
                _ => fields.push(key.clone()),
            }
        }
        fields.retain(|field| field != "kind" && field != "description");
        fields.sort();
        fields
    }

    #[test]
    fn every_parameter_exists_and_every_field_is_a_parameter() {
        let mut spec = preset("mpg3307at");
        let curve = SeekSpec {
            a_ms: Some(0.0),
            b_ms: Some(0.0),
            c_ms: Some(0.0),
            e_ms: Some(0.0),
            knee: Some(2),
            ..spec.seek.clone()
        };
        spec.seek = curve;
        let known = |kind| {
            let mut known: Vec<String> = parameters(kind).map(|p| p.name.to_owned()).collect();
            known.sort();
            known
        };
        assert_eq!(fields_of(&spec), known(DriveKind::Hdd));
        let DriveSpec::Ssd(ssd) = DriveSpec::preset("samsung-slc-64").unwrap() else { panic!("no ssd") };
        assert_eq!(fields_of(&ssd), known(DriveKind::Ssd));
        let DriveSpec::Sd(sd) = DriveSpec::preset("sd16-mid").unwrap() else { panic!("no card") };
        assert_eq!(fields_of(&sd), known(DriveKind::Sd));
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
        let good = DriveSpec::preset("mpg3307at").unwrap().to_toml();
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
