//! The costs of a drive's requests, measured on its model: `auto` and the cleaners' cost models
//! decide by them.
//!
//! A bare drive is timed in virtual time, over the size of the volume: writing and reading in sequence in large and in
//! small requests, small requests at places drawn at random, and sweeps over segments that leave most blocks out, as
//! recycling does. Its buffer is left on and flushed at the end.

use std::sync::Arc;

use moafs_disk::model::{Contents, DriveSpec, ModelDisk};
use moafs_disk::{Buf, DiskExt, Kind, Lba, MemDisk, Op, Request, SECTOR, Tag};
use moafs_f2fs::place::{Charge, DeviceCost};
use moafs_runtime::{Rt, Virtual};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::{LabError, Result};

const BLOCK_BYTES: usize = 4096;
const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR) as u64;
/// Bytes written or read in sequence.
const SEQUENCE_BYTES: usize = 32 << 20;
/// A large request: the largest that all presets take.
const LARGE_BYTES: usize = 128 << 10;
/// Requests at random places.
const SCATTERED: u64 = 256;
const SEED: u64 = 1;
/// Sweeps over segments: each so many runs of eight blocks, a file of 32 KiB, with gaps between.
const SWEEPS: u64 = 64;
const SEGMENT_BYTES: u64 = 2 << 20;
const RUN_BLOCKS: u64 = 8;
const RUNS: u64 = 12;
const GAP_BLOCKS: u64 = 34;
const _: () = assert!(RUNS * (RUN_BLOCKS + GAP_BLOCKS) <= SEGMENT_BYTES / BLOCK_BYTES as u64);

/// Measures the costs of the drive on a volume of `bytes` bytes.
///
/// # Errors
/// Fails if the drive cannot be made, or refuses a request.
pub fn device_cost(spec: &DriveSpec, bytes: u64) -> Result<DeviceCost> {
    Ok(DeviceCost { read: charge(spec, bytes, Way::Read)?, write: charge(spec, bytes, Way::Write)? })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

fn charge(spec: &DriveSpec, bytes: u64, way: Way) -> Result<Charge> {
    let blocks = bytes / BLOCK_BYTES as u64;
    let in_sequence = |each: usize, count: usize| -> Vec<u64> {
        (0..count as u64).map(|at| (at * (each / BLOCK_BYTES) as u64) % blocks).collect()
    };
    let large = time(spec, bytes, way, LARGE_BYTES, &in_sequence(LARGE_BYTES, SEQUENCE_BYTES / LARGE_BYTES))?;
    let block_ns = large / (SEQUENCE_BYTES / BLOCK_BYTES) as u64;
    let count = SEQUENCE_BYTES / BLOCK_BYTES / 4;
    let small = time(spec, bytes, way, BLOCK_BYTES, &in_sequence(BLOCK_BYTES, count))? / count as u64;
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let scattered: Vec<u64> = (0..SCATTERED).map(|_| rng.random_range(0..blocks)).collect();
    let far = time(spec, bytes, way, BLOCK_BYTES, &scattered)? / SCATTERED;
    let request_ns = small.saturating_sub(block_ns);
    let seek_ns = far.saturating_sub(block_ns + request_ns);
    let segments = bytes / SEGMENT_BYTES;
    let swept: Vec<u64> = (0..SWEEPS)
        .flat_map(|_| {
            let first = rng.random_range(0..segments) * (SEGMENT_BYTES / BLOCK_BYTES as u64);
            (0..RUNS).map(move |run| first + run * (RUN_BLOCKS + GAP_BLOCKS))
        })
        .collect();
    let sweep = time(spec, bytes, way, RUN_BLOCKS as usize * BLOCK_BYTES, &swept)? / SWEEPS;
    let hops = sweep.saturating_sub(seek_ns + RUNS * (request_ns + RUN_BLOCKS * block_ns));
    Ok(Charge { block_ns, request_ns, seek_ns, gap_ns: hops / ((RUNS - 1) * GAP_BLOCKS) })
}

/// Returns the time that requests of `each` bytes at these blocks take, one after the other, on a
/// fresh drive.
fn time(spec: &DriveSpec, bytes: u64, way: Way, each: usize, blocks: &[u64]) -> Result<u64> {
    let runtime = Virtual::new(None);
    let failed = |error: String| LabError::Drive(format!("timing the drive: {error}"));
    runtime.run(|| {
        let rt: Rt = runtime.rt();
        let store = MemDisk::new(bytes / SECTOR as u64);
        let disk = ModelDisk::new(Arc::clone(&rt), spec, store, Contents::Metadata);
        let disk = disk.map_err(|error| failed(error.to_string()))?;
        let tag = Tag::volume(Kind::Data);
        let page = Buf::zeroed(each).freeze();
        let start = rt.now();
        for block in blocks {
            let op = match way {
                Way::Read => Op::Read { into: vec![Buf::scratch(each)] },
                Way::Write => Op::Write { data: vec![page.clone()], fua: false },
            };
            let done = disk.run(vec![Request { op, at: Lba(block * BLOCK_SECTORS), tag }]).remove(0);
            done.result.map_err(|error| failed(error.to_string()))?;
        }
        disk.flush().map_err(|error| failed(error.to_string()))?;
        Ok((rt.now() - start).as_nanos() as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hard_disk_charges_for_seeks_and_streams_at_its_rate() {
        let spec = crate::machine::drive("hds721616pla380").unwrap();
        let cost = device_cost(&spec, 1 << 30).unwrap();
        for charge in [cost.read, cost.write] {
            let mb_s = BLOCK_BYTES as f64 * 1e3 / charge.block_ns as f64;
            assert!((60.0..80.0).contains(&mb_s), "{charge:?}");
            assert!((2_000_000..15_000_000).contains(&charge.seek_ns), "{charge:?}");
        }
    }
}
