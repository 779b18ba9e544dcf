//! The costs of a device's requests, which every cost model of this crate uses.
//!
//! There are four numbers per direction, measured at mount or taken from the model of the device. A
//! request costs `request_ns` plus `block_ns` per block. A request that does not begin where the
//! last one ended costs more: `seek_ns`, or, if that is less, `gap_ns` per block between the two.
//! On a drive the head sweeps over a segment and waits until the gap has passed by. Flash has no
//! head, but a write out of sequence has its cost there whatever the length of the gap.

use serde::Serialize;

use crate::format::BLOCK;

/// The costs of requests of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Charge {
    /// Transfer of one block of 4096 bytes.
    pub block_ns: u64,
    /// Cost of every request, independent of its place.
    pub request_ns: u64,
    /// On top: a request that begins far from where the last one ended.
    pub seek_ns: u64,
    /// On top instead, if that is less: per block between the last request and this one, ahead of it.
    pub gap_ns: u64,
}

/// The costs of a device's requests, by direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeviceCost {
    /// The costs of read requests.
    pub read: Charge,
    /// The costs of write requests.
    pub write: Charge,
}

impl DeviceCost {
    /// A disk drive of 60 MB/s whose random requests take about 9 ms.
    pub const HDD: DeviceCost = {
        let charge = Charge::sweeping(60_000_000, 100_000, 9_000_000);
        DeviceCost { read: charge, write: charge }
    };
    /// A solid state drive that maps pages: a scattered write costs little more than another request.
    pub const SSD: DeviceCost = DeviceCost {
        read: Charge::flash(100_000_000, 60_000, 40_000),
        write: Charge::flash(80_000_000, 60_000, 200_000),
    };
    /// A solid state drive of the first generation, which maps blocks: a scattered write costs the
    /// merge of a flash block.
    pub const SSD_BLOCK_MAPPED: DeviceCost = DeviceCost {
        read: Charge::flash(100_000_000, 60_000, 40_000),
        write: Charge::flash(80_000_000, 60_000, 8_000_000),
    };
}

impl Charge {
    /// Returns the costs of a drive with a moving head: gaps pass by as fast as blocks are
    /// transferred.
    pub const fn sweeping(bytes_per_s: u64, request_ns: u64, seek_ns: u64) -> Charge {
        let block_ns = block_ns(bytes_per_s);
        Charge { block_ns, request_ns, seek_ns, gap_ns: block_ns }
    }

    /// Returns the costs of a device without a head: every gap costs the same.
    pub const fn flash(bytes_per_s: u64, request_ns: u64, seek_ns: u64) -> Charge {
        Charge { block_ns: block_ns(bytes_per_s), request_ns, seek_ns, gap_ns: seek_ns }
    }

    /// Returns the cost of one request of so many blocks, far from the last one.
    pub fn at_once_ns(&self, blocks: f64) -> f64 {
        self.request_ns as f64 + self.seek_ns as f64 + blocks * self.block_ns as f64
    }

    /// Returns the cost of a request behind a gap of so many blocks, without its transfer.
    pub fn hop_ns(&self, gap_blocks: f64) -> f64 {
        self.request_ns as f64 + (gap_blocks * self.gap_ns as f64).min(self.seek_ns as f64)
    }

    /// Returns the cost of so many blocks in runs of `run_blocks` on average, each run a request
    /// far from the last one.
    pub fn scattered_ns(&self, blocks: f64, run_blocks: f64) -> f64 {
        let requests = blocks / run_blocks.max(1.0);
        requests * (self.request_ns + self.seek_ns) as f64 + blocks * self.block_ns as f64
    }

    /// Returns the cost of one ascending sweep over a segment: `blocks` in `runs` requests,
    /// `gap_blocks` in all between them.
    pub fn sweep_ns(&self, blocks: f64, runs: f64, gap_blocks: f64) -> f64 {
        if runs < 1.0 {
            return 0.0;
        }
        let gaps = (runs - 1.0).max(1.0);
        self.at_once_ns(blocks) + (runs - 1.0) * self.hop_ns(gap_blocks / gaps)
    }
}

const fn block_ns(bytes_per_s: u64) -> u64 {
    BLOCK as u64 * 1_000_000_000 / if bytes_per_s == 0 { 1 } else { bytes_per_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_costs_no_more_than_its_requests_apart() {
        for charge in [DeviceCost::HDD.write, DeviceCost::SSD.write] {
            assert!(charge.sweep_ns(256.0, 32.0, 256.0) <= charge.scattered_ns(256.0, 8.0));
            assert_eq!(charge.sweep_ns(256.0, 1.0, 0.0), charge.at_once_ns(256.0));
            assert_eq!(charge.sweep_ns(0.0, 0.0, 0.0), 0.0);
        }
    }
}
