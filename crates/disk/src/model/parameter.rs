//! The parameters that the drives of one kind have: name, meaning with unit, range.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The largest time that a drive file may give, in ms.
pub(crate) const MS_MAX: f64 = 10_000.0;

/// The kind of drive that a file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// A hard disk.
    Hdd,
    /// A solid state disk.
    Ssd,
    /// An SD card.
    Sd,
}

impl DriveKind {
    /// Every kind of drive.
    pub const ALL: [DriveKind; 3] = [DriveKind::Hdd, DriveKind::Ssd, DriveKind::Sd];

    /// Returns the kind's name in drive files.
    pub fn name(self) -> &'static str {
        match self {
            DriveKind::Hdd => "hdd",
            DriveKind::Ssd => "ssd",
            DriveKind::Sd => "sd",
        }
    }
}

/// The parameters of one kind of drive: the contents of its file.
pub(crate) trait KindSpec: Serialize + DeserializeOwned {
    /// The parameters, in groups.
    const PARAMETERS: &'static [&'static [Parameter]];
    /// The names of the cache's switches.
    const CACHE_SWITCHES: &'static [&'static str];

    /// Refuses parameters that the model cannot work with, once every number lies in its range.
    fn check(&self) -> Result<(), Unsound>;
}

/// One parameter: name, meaning with unit, and the range it must lie in (numbers only).
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// The name, with its table.
    pub name: &'static str,
    /// The meaning, with its unit.
    pub meaning: &'static str,
    /// The lowest sound value.
    pub min: f64,
    /// The highest sound value.
    pub max: f64,
}

pub(crate) const fn number(name: &'static str, meaning: &'static str, min: f64, max: f64) -> Parameter {
    Parameter { name, meaning, min, max }
}

/// Makes a parameter without a numeric range: on or off, or one of a few words.
pub(crate) const fn switch(name: &'static str, meaning: &'static str) -> Parameter {
    Parameter { name, meaning, min: 0.0, max: 0.0 }
}

/// An error in a specification: the parameter, and a sentence about it.
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

/// Converts milliseconds to whole nanoseconds, rounded half up.
pub(crate) fn ms_to_ns(ms: f64) -> u64 {
    (ms * 1e6 + 0.5).floor().max(0.0) as u64
}
