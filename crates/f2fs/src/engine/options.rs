//! Options for opening a volume.

use std::sync::Arc;

use crate::clean::oracle::Foresight;
use crate::clean::{Cleaner, Order};
use crate::place::{DeviceCost, Recycling, Temperature};

/// Options for opening a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// If true, nothing at all is written.
    pub read_only: bool,
    /// If false, what was fsynced after the last checkpoint is given up.
    pub roll_forward: bool,
    /// The largest data request in bytes.
    pub transfer_bytes_max: usize,
    /// Memory for the volume in bytes: what a policy remembers of blocks takes a sixteenth at most.
    pub cache_bytes: usize,
    /// The policy that chooses victims of cleaning.
    pub cleaner: Cleaner,
    /// The order in which the valid blocks of victims are written.
    pub clean_order: Order,
    /// Sections that are cleaned together, at least 1.
    pub clean_batch: u32,
    /// The policy that decides when logs recycle.
    pub recycling: Recycling,
    /// The policy that tells hot data from cold.
    pub temperature: Temperature,
    /// If true, cleaning goes on while there are no requests.
    pub background: bool,
    /// If true, the device is told which segments became free.
    pub discard: bool,
    /// The device's costs; decisions between cleaning and recycling rest on them.
    pub device: DeviceCost,
    /// The seed for random choices among equals.
    pub seed: u64,
    /// Knowledge of the future: in experiments, the oracle cleans by it instead of `cleaner`.
    pub foresight: Option<Arc<dyn Foresight>>,
    /// If true, that knowledge decides where data go as well, instead of `temperature`.
    pub places_by_foresight: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            roll_forward: true,
            transfer_bytes_max: 1 << 20,
            cache_bytes: 256 << 20,
            cleaner: Cleaner::default(),
            clean_order: Order::default(),
            clean_batch: 1,
            recycling: Recycling::default(),
            temperature: Temperature::default(),
            background: true,
            discard: true,
            device: DeviceCost::SSD,
            seed: 0,
            foresight: None,
            places_by_foresight: false,
        }
    }
}
