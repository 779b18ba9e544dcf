//! Sorts an array that is larger than the memory it may take; the rest of it is in the swap areas of an ext2 volume,
//! which is not mounted.
//!
//! ```text
//! truncate -s 1G image && moafs mkfs ext2 image
//! cargo run --release -p moafs-swap --example large_array -- --array 256 --budget 64 image
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use moafs_disk::{Elevator, FileDisk, FileOptions, QueueOptions, SharedDisk};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt};
use moafs_swap::{Home, PAGE_BYTES, Region, RegionOptions, Swap, SwapOptions};
use moafs_vfs::Vfs;
use moafs_vfs::api::Options;

/// Sorts an array larger than its memory
#[derive(Parser)]
struct Arguments {
    /// An image or device with an ext2 volume that no other program uses meanwhile
    image: PathBuf,
    /// Size of the array in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    array: u32,
    /// Memory it may take in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    budget: u32,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("large_array: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let rt = Live::new();
    let (vfs, disk) = open(&arguments.image, &rt)?;
    let worked = with_volume(&vfs, disk, rt, arguments);
    // Swap and region are dropped; the volume is unchanged.
    vfs.close()?;
    worked
}

/// Opens the volume as a mount would.
fn open(image: &Path, rt: &Rt) -> Result<(Vfs<Ext>, SharedDisk)> {
    let file = FileDisk::open(image, rt.clone(), FileOptions::default())?;
    let disk: SharedDisk = Arc::new(Elevator::new(Arc::new(file), rt.clone(), QueueOptions::default()));
    let format = Ext::open(disk.clone(), rt.clone(), OpenOptions::default())?;
    Ok((Vfs::new(format, disk.clone(), rt.clone(), Options::default()), disk))
}

fn with_volume(vfs: &Vfs<Ext>, disk: SharedDisk, rt: Rt, arguments: &Arguments) -> Result<()> {
    let home = Home::of(vfs, disk).ok_or("this format has no room for swap areas")?;
    let pages = u32::try_from(u64::from(arguments.array) * MIB / PAGE_BYTES as u64)?;
    let swap = Arc::new(Swap::open(Some(home), None, pages, rt, SwapOptions::default())?);
    let options = RegionOptions { budget_bytes: u64::from(arguments.budget) * MIB, ..RegionOptions::default() };
    let mut region = Region::new(Arc::clone(&swap), options)?;

    let numbers = region.as_mut_slice_of::<u64>();
    let filled = timed("filled", || fill(numbers));
    timed("sorted", || numbers.sort_unstable());
    let (is_sorted, sum) = timed("verified", || (numbers.is_sorted(), wrapping_sum(numbers)));
    println!("{:#?}\n{}", region.stats(), swap.status().json());
    if is_sorted && sum == filled { Ok(()) } else { Err("the array is not what it should be".into()) }
}

/// Fills the array with numbers in no order (xorshift); returns their sum, which is not computed
/// from the region.
fn fill(numbers: &mut [u64]) -> u64 {
    let (mut state, mut sum) = (0x2545_F491_4F6C_DD1D_u64, 0_u64);
    for number in numbers {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum = sum.wrapping_add(state);
        *number = state;
    }
    sum
}

fn wrapping_sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number))
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    println!("{what} in {:.2} s", began.elapsed().as_secs_f64());
    result
}
