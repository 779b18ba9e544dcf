//! A solid state disk's parameters.

use serde::{Deserialize, Serialize};

use super::super::flash::page_map::PageMap;
use super::super::flash::spec::{FLASH, FlashSpec, PRECONDITION, PreconditionSpec};
use super::super::parameter::{DriveKind, KindSpec, MS_MAX, Parameter, Unsound, number, switch};

/// A solid state disk's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdSpec {
    /// The kind of drive, [`DriveKind::Ssd`].
    pub kind: DriveKind,
    /// A one-line description for users.
    pub description: String,
    /// Advertised capacity in sectors.
    pub sectors: u64,
    /// Time of the electronics for each command, in ms.
    pub overhead_ms: f64,
    /// Read rate of link and controller in 10^6 bytes per second; `inf`: transfers take no time.
    pub read_mb_s: f64,
    /// Write rate of link and controller in 10^6 bytes per second; `inf`: transfers take no time.
    pub write_mb_s: f64,
    /// The largest command in sectors.
    pub transfer_sectors_max: u32,
    /// Commands the drive works on at once; 1: no queueing.
    pub ncq_depth: u32,
    /// True if discards reach the translation layer.
    pub trim: bool,
    /// Size and times of the flash chips.
    pub flash: FlashSpec,
    /// The flash translation layer.
    pub ftl: FtlSpec,
    /// The buffer on board.
    pub cache: BufferSpec,
    /// The state of the drive at time 0.
    pub precondition: PreconditionSpec,
}

/// The kind of flash translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// Page mapping with greedy garbage collection.
    Page,
    /// Block mapping, with log blocks for new versions (FAST).
    Fast,
}

/// The translation layer. Parameters of the other mapping have no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtlSpec {
    /// The kind of flash translation.
    pub mapping: Mapping,
    /// Log superblocks of `fast` mapping, one of them sequential.
    pub log_superblocks: u32,
    /// With `page` mapping, a die with fewer free blocks than this collects garbage.
    pub free_blocks_min: u32,
    /// True if copies of `page` mapping go to blocks of their own.
    pub copies_apart: bool,
}

/// The write buffer on board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// True if a write completes when it is in the buffer.
    pub write: bool,
    /// The most that may wait in the buffer to be programmed, in KiB.
    pub dirty_kib: u32,
}

const PARAMETERS: &[Parameter] = &[
    number("sectors", "advertised capacity, sectors of 512 bytes", 1.0, (1_u64 << 40) as f64),
    number("overhead_ms", "the electronics' share of each command, ms", 0.0, MS_MAX),
    number("read_mb_s", "what link and controller can read, 10^6 bytes per second", 0.001, f64::INFINITY),
    number("write_mb_s", "what link and controller can write, 10^6 bytes per second", 0.001, f64::INFINITY),
    number("transfer_sectors_max", "the largest command, sectors", 8.0, 65_536.0),
    number("ncq_depth", "commands the drive works on at once; 1: no queueing", 1.0, 256.0),
    switch("trim", "discards reach the translation layer: on, off"),
    switch("ftl.mapping", "how the drive finds its pages: page, fast"),
    number("ftl.log_superblocks", "fast: log superblocks, one of them sequential", 2.0, 1024.0),
    number("ftl.free_blocks_min", "page: a die with fewer free blocks collects garbage", 2.0, 1024.0),
    switch("ftl.copies_apart", "page: copies go to blocks of their own: on, off"),
    switch("cache.write", "writes are done when in the buffer: on, off"),
    number("cache.dirty_kib", "data that may wait in the buffer to be programmed, KiB", 0.0, (1 << 20) as f64),
];

impl KindSpec for SsdSpec {
    const PARAMETERS: &'static [&'static [Parameter]] = &[PARAMETERS, FLASH, PRECONDITION];
    const CACHE_SWITCHES: &'static [&'static str] = &["cache.write"];

    fn check(&self) -> Result<(), Unsound> {
        self.flash.check()?;
        match self.ftl.mapping {
            Mapping::Page => PageMap::check(&self.flash, self.sectors, self.ftl.free_blocks_min),
            Mapping::Fast => self.flash.check_superblocks(self.sectors, u64::from(self.ftl.log_superblocks) + 1),
        }
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::super::spec::DriveSpec;
    use super::*;

    /// Returns a built-in solid state disk.
    pub(in super::super::super) fn preset(name: &str) -> SsdSpec {
        match DriveSpec::preset(name).unwrap() {
            DriveSpec::Ssd(spec) => spec,
            other => panic!("{other:?} is no solid state disk"),
        }
    }

    #[test]
    fn sizes_are_those_of_the_sheet() {
        let spec = preset("samsung-slc-64");
        assert_eq!(spec.flash.superblock_pages(), 512);
        assert_eq!(spec.flash.host_superblocks(spec.sectors), 30_529);
        assert_eq!(u64::from(spec.flash.blocks_per_die) * spec.flash.superblock_pages() * 4096, 64 << 30);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (name, parameter, value, expected) in [
            ("samsung-slc-64", "ftl.mapping", "magic", "unknown variant `magic`"),
            ("samsung-slc-64", "ftl.mapping", "1", "ftl.mapping=1"),
            ("samsung-slc-64", "ftl.log_superblocks", "1", "must be from 2"),
            ("samsung-slc-64", "flash.blocks_per_die", "30539", "the capacity and the logs need 30540 blocks"),
            ("samsung-slc-64-page", "flash.blocks_per_die", "30530", "fewer than the capacity has"),
            ("samsung-slc-64-page", "flash.blocks_per_die", "1000000000", "pages on all dies"),
            ("samsung-slc-64-page", "precondition.fill_percent", "101", "must be from 0 to 100"),
            ("samsung-slc-64-page", "rpm", "5400", "there is no parameter `rpm`; there are cache (on, off), sectors"),
        ] {
            let mut spec = DriveSpec::preset(name).unwrap();
            let before = spec.clone();
            let error = spec.set(parameter, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{parameter}={value}: {error}");
            assert_eq!(spec, before);
        }
        let mut spec = DriveSpec::preset("samsung-slc-64").unwrap();
        spec.set("ftl.mapping", "page").unwrap();
        spec.set("cache", "off").unwrap();
        assert!(!spec.has_volatile_cache());
    }
}
