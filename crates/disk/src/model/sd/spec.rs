//! An SD card's parameters.

use serde::{Deserialize, Serialize};

use super::super::flash::spec::{FLASH, FlashSpec, PRECONDITION, PreconditionSpec};
use super::super::parameter::{DriveKind, KindSpec, MS_MAX, Parameter, Unsound, number, switch};

/// An SD card's parameters. An allocation unit is one erase block of every die.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SdSpec {
    /// The kind of drive, [`DriveKind::Sd`].
    pub kind: DriveKind,
    /// A one-line description for users.
    pub description: String,
    /// Advertised capacity in sectors.
    pub sectors: u64,
    /// Fixed time of each command in ms, at the card and the host.
    pub overhead_ms: f64,
    /// Bus rate in 10^6 bytes per second; `inf`: transfers take no time.
    pub bus_mb_s: f64,
    /// The largest command in sectors.
    pub transfer_sectors_max: u32,
    /// True if discards reach the translation layer.
    pub trim: bool,
    /// Size and times of the flash chips.
    pub flash: FlashSpec,
    /// Numbers of open allocation units.
    pub ftl: UnitsSpec,
    /// The state of the card at time 0.
    pub precondition: PreconditionSpec,
}

/// Allocation units that the card keeps open or as logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitsSpec {
    /// Units that can be written in order at the same time.
    pub sequential_units: u32,
    /// Units for all other writes; one of them is being emptied while the others fill.
    pub random_units: u32,
}

const PARAMETERS: &[Parameter] = &[
    number("sectors", "advertised capacity, sectors of 512 bytes", 1.0, (1_u64 << 40) as f64),
    number("overhead_ms", "the card's and the host's share of each command, ms", 0.0, MS_MAX),
    number("bus_mb_s", "bus rate, 10^6 bytes per second; inf: takes no time", 0.001, f64::INFINITY),
    number("transfer_sectors_max", "the largest command, sectors", 8.0, 65_536.0),
    switch("trim", "discards reach the translation layer: on, off"),
    number("ftl.sequential_units", "allocation units that can be written in order at the same time", 1.0, 256.0),
    number("ftl.random_units", "allocation units for everything else", 2.0, 1024.0),
];

impl KindSpec for SdSpec {
    const PARAMETERS: &'static [&'static [Parameter]] = &[PARAMETERS, FLASH, PRECONDITION];
    const CACHE_SWITCHES: &'static [&'static str] = &[];

    fn check(&self) -> Result<(), Unsound> {
        self.flash.check()?;
        let logs = u64::from(self.ftl.sequential_units) + u64::from(self.ftl.random_units);
        self.flash.check_superblocks(self.sectors, logs + 1)
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::super::spec::DriveSpec;
    use super::*;

    /// Returns a built-in card.
    pub(in super::super::super) fn preset(name: &str) -> SdSpec {
        match DriveSpec::preset(name).unwrap() {
            DriveSpec::Sd(spec) => spec,
            other => panic!("{other:?} is no card"),
        }
    }

    #[test]
    fn sizes_are_those_of_the_sheet() {
        let spec = preset("sd16-mid");
        assert_eq!(spec.flash.superblock_pages() * spec.flash.page_bytes(), 4 << 20);
        assert_eq!(spec.flash.host_superblocks(spec.sectors), 3_799);
    }

    #[test]
    fn a_card_has_no_cache_to_turn_off() {
        let mut spec = DriveSpec::preset("sd16-slow").unwrap();
        assert!(spec.set("cache", "off").unwrap_err().to_string().contains("this drive has no cache"));
        assert!(spec.set("cache.write", "off").unwrap_err().to_string().contains("there is no parameter"));
        spec.write_through();
        assert_eq!(spec, DriveSpec::preset("sd16-slow").unwrap());
    }
}
