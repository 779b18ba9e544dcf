//! A solid state disk's parameters.

use serde::{Deserialize, Serialize};

use super::super::flash::page_map::PageMap;
use super::super::flash::spec::{FLASH, FlashSpec, PRECONDITION, PreconditionSpec};
use super::super::spec::{DriveKind, KindSpec, MS_MAX, Parameter, Unsound, number, switch};

/// A solid state disk's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdSpec {
    /// [`DriveKind::Ssd`].
    pub kind: DriveKind,
    /// One line for people.
    pub description: String,
    /// Advertised capacity.
    pub sectors: u64,
    /// The electronics' share of each command.
    pub overhead_ms: f64,
    /// What link and controller can read, in 10^6 bytes per second; `inf`: takes no time.
    pub read_mb_s: f64,
    /// What link and controller can write, in 10^6 bytes per second; `inf`: takes no time.
    pub write_mb_s: f64,
    /// The largest command.
    pub transfer_sectors_max: u32,
    /// Commands the drive works on at once; 1: no queueing.
    pub ncq_depth: u32,
    /// Discards reach the translation layer.
    pub trim: bool,
    /// The chips.
    pub flash: FlashSpec,
    /// The translation layer.
    pub ftl: FtlSpec,
    /// The buffer on board.
    pub cache: BufferSpec,
    /// What happened to the drive before time 0.
    pub precondition: PreconditionSpec,
}

/// How the drive finds its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// Every page by itself; greedy garbage collection.
    Page,
    /// Blocks, with log blocks for new versions (FAST).
    Fast,
}

/// The translation layer. What is for the other mapping has no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FtlSpec {
    /// How the drive finds its pages.
    pub mapping: Mapping,
    /// Log superblocks of `fast`, one of them sequential.
    pub log_superblocks: u32,
    /// Below so many free blocks a die of `page` collects garbage.
    pub free_blocks_min: u32,
    /// Copies of `page` go to blocks of their own.
    pub copies_apart: bool,
}

/// The buffer on board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// Writes are done when they are in the buffer.
    pub write: bool,
    /// How much may wait in the buffer to be programmed.
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

    /// A built-in solid state disk.
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
