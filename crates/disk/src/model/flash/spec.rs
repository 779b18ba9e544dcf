//! Chips and preconditioning as parameters.

use serde::{Deserialize, Serialize};

use super::super::parameter::{MS_MAX, Parameter, Unsound, number, switch};
use crate::SECTOR;

/// Bounds the memory of the tables: four bytes per page.
const PAGES_MAX: u64 = 1 << 28;

/// Size and times of the flash chips.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// The number of channels.
    pub channels: u32,
    /// Dies on each channel.
    pub ways: u32,
    /// KiB of a page, the unit of programming.
    pub page_kib: u32,
    /// Pages of an erase block.
    pub block_pages: u32,
    /// Erase blocks of a die.
    pub blocks_per_die: u32,
    /// Time of reading a page from the array to the register, in ms.
    pub read_ms: f64,
    /// Time of programming a page from the register to the array, in ms.
    pub program_ms: f64,
    /// Time of erasing a block, in ms.
    pub erase_ms: f64,
    /// Rate between controller and register in 10^6 bytes per second; `inf`: transfers take no
    /// time.
    pub channel_mb_s: f64,
    /// True if copies stay on their die; otherwise they cross the channel twice.
    pub copy_back: bool,
}

/// The parameters of a [`FlashSpec`].
pub(in crate::model) const FLASH: &[Parameter] = &[
    number("flash.channels", "channels", 1.0, 64.0),
    number("flash.ways", "dies on each channel", 1.0, 64.0),
    number("flash.page_kib", "a page, the unit of programming, KiB", 1.0, 1024.0),
    number("flash.block_pages", "pages of an erase block", 1.0, 65_536.0),
    number("flash.blocks_per_die", "erase blocks of a die", 1.0, (1 << 30) as f64),
    number("flash.read_ms", "a page from the array to the register, ms", 0.0, MS_MAX),
    number("flash.program_ms", "a page from the register to the array, ms", 0.0, MS_MAX),
    number("flash.erase_ms", "erasing a block, ms", 0.0, MS_MAX),
    number(
        "flash.channel_mb_s",
        "between controller and register, 10^6 bytes per second; inf: takes no time",
        0.001,
        f64::INFINITY,
    ),
    switch("flash.copy_back", "copies stay on their die; otherwise they cross the channel twice: on, off"),
];

/// The use of the drive before time 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreconditionSpec {
    /// Share of the capacity that holds data, from the first sector on; written in order.
    pub fill_percent: f64,
    /// Pages then overwritten at random, as a share of those that hold data.
    pub overwrite_percent: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The parameters of a [`PreconditionSpec`].
pub(in crate::model) const PRECONDITION: &[Parameter] = &[
    number("precondition.fill_percent", "share of the capacity that holds data at time 0, in percent", 0.0, 100.0),
    number(
        "precondition.overwrite_percent",
        "pages overwritten at random before time 0, in percent of those that hold data",
        0.0,
        10_000.0,
    ),
    number("precondition.seed", "seed of these overwrites", 0.0, u32::MAX as f64),
];

impl FlashSpec {
    pub(in crate::model) fn page_bytes(&self) -> u64 {
        u64::from(self.page_kib) << 10
    }

    pub(in crate::model) fn page_sectors(&self) -> u64 {
        self.page_bytes() / SECTOR as u64
    }

    pub(in crate::model) fn dies(&self) -> usize {
        self.channels as usize * self.ways as usize
    }

    /// Returns the number of pages of one block from every die.
    pub(in crate::model) fn superblock_pages(&self) -> u64 {
        self.dies() as u64 * u64::from(self.block_pages)
    }

    /// Returns the number of pages that the host sees.
    pub(in crate::model) fn host_pages(&self, sectors: u64) -> u64 {
        sectors.div_ceil(self.page_sectors())
    }

    /// Returns the number of superblocks that the host sees, the last one in part.
    pub(in crate::model) fn host_superblocks(&self, sectors: u64) -> u64 {
        self.host_pages(sectors).div_ceil(self.superblock_pages())
    }

    /// Refuses more pages than can be numbered, also on the chips.
    pub(in crate::model) fn check(&self) -> Result<(), Unsound> {
        let pages = u64::from(self.blocks_per_die) * self.superblock_pages();
        match pages <= PAGES_MAX {
            true => Ok(()),
            false => {
                let problem = format!("{pages} pages on all dies; at most {PAGES_MAX} are supported");
                Err(Unsound::new("flash.blocks_per_die", problem))
            }
        }
    }

    /// Refuses chips without room for the superblocks of the host and `more` of them.
    pub(in crate::model) fn check_superblocks(&self, sectors: u64, more: u64) -> Result<(), Unsound> {
        let needed = self.host_superblocks(sectors) + more;
        match needed <= u64::from(self.blocks_per_die) {
            true => Ok(()),
            false => {
                let problem = format!("the capacity and the logs need {needed} blocks of each die");
                Err(Unsound::new("flash.blocks_per_die", problem))
            }
        }
    }
}
