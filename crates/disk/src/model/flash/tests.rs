//! The translation layers against the analytic and simulated values of `docs/models.md`.

use super::super::ssd::spec::tests::preset;
use super::FlashCounters;
use super::chips::Chips;
use super::log_blocks::LogBlocks;
use super::page_map::PageMap;
use super::precondition::SplitMix64;
use super::spec::FlashSpec;

/// Makes one die with blocks of this size.
fn one_die(block_pages: u32, blocks: u32) -> FlashSpec {
    FlashSpec { channels: 1, ways: 1, block_pages, blocks_per_die: blocks, ..preset("samsung-slc-64").flash }
}

/// Blocks of the simulated drives.
const BLOCKS: u32 = 4096;

/// Returns the write amplification of a page-mapped drive with all pages valid, in the steady state: `fills` times its
/// pages are written in the order of `next`, and the second half counts.
fn page_mapped(block_pages: u32, rho: f64, fills: u64, mut next: impl FnMut(u64) -> u64) -> f64 {
    let flash = one_die(block_pages, BLOCKS);
    let pages = (f64::from(BLOCKS * block_pages) / (1.0 + rho)) as u32;
    let (mut map, mut chips) = (PageMap::new(&flash, pages, 4, false), Chips::new(&flash));
    map.fill(pages, &mut chips);
    let mut half = FlashCounters::default();
    for write in 0..fills * u64::from(pages) {
        if write == fills * u64::from(pages) / 2 {
            half = chips.counters;
        }
        map.write(next(u64::from(pages)) as u32, 0, &mut chips);
    }
    let counted = chips.counters.since(&half);
    (counted.host_pages + counted.gc_pages) as f64 / counted.host_pages as f64
}

fn uniform(block_pages: u32, rho: f64) -> f64 {
    let mut random = SplitMix64(1);
    page_mapped(block_pages, rho, 8, |pages| random.next() % pages)
}

/// Returns the write amplification by Desnoyers 2012 and Xiang and Kurkoski 2012: for cleaning in order of age, and as
/// the limit of greedy cleaning for large blocks.
fn lambert(rho: f64) -> f64 {
    let alpha = 1.0 + rho;
    let target = -alpha * (-alpha).exp();
    // The principal branch lies between -1 and 0 here, where w e^w ascends.
    let (mut low, mut high) = (-1.0_f64, 0.0_f64);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if middle * middle.exp() < target { low = middle } else { high = middle }
    }
    alpha / (alpha + low)
}

#[test]
fn the_analytic_form_has_the_published_values() {
    for (rho, expected) in [(0.07, 7.817), (0.10, 5.678), (0.28, 2.481), (0.30, 2.364), (1.00, 1.255)] {
        assert!((lambert(rho) - expected).abs() < 0.001, "{rho}: {}", lambert(rho));
    }
}

#[test]
fn greedy_cleaning_amplifies_random_writes_as_simulated_and_less_than_the_analytic_limit() {
    for (rho, simulated) in [(0.10, 5.313), (0.15, 3.836), (0.28, 2.414), (0.50, 1.685), (1.00, 1.240)] {
        let is = uniform(64, rho);
        println!("greedy, 64 pages per block, rho {rho}: {is:.3}, simulated {simulated}, analytic {:.3}", lambert(rho));
        assert!((is / simulated - 1.0).abs() < 0.02, "rho {rho}: {is:.3}, expected {simulated}");
        assert!(is < lambert(rho), "rho {rho}: {is:.3}");
    }
}

#[test]
fn large_blocks_come_near_the_analytic_limit_and_small_ones_stay_below() {
    for (pages, rho, simulated) in [(32, 0.28, 2.341), (32, 0.10, 4.955), (256, 0.28, 2.484)] {
        let is = uniform(pages, rho);
        assert!((is / simulated - 1.0).abs() < 0.02, "{pages} pages, rho {rho}: {is:.3}, expected {simulated}");
    }
}

#[test]
fn mixing_hot_and_cold_pages_is_worse_than_writing_all_alike() {
    for (hot_space, hot_writes, simulated) in [(0.20, 0.80, 2.76), (0.10, 0.90, 3.26)] {
        let mut random = SplitMix64(1);
        let is = page_mapped(64, 0.28, 16, |pages| {
            let hot_pages = (pages as f64 * hot_space) as u64;
            let hot = ((random.next() >> 11) as f64 / (1_u64 << 53) as f64) < hot_writes;
            if hot { random.next() % hot_pages } else { hot_pages + random.next() % (pages - hot_pages) }
        });
        assert!((is / simulated - 1.0).abs() < 0.03, "{hot_space}: {is:.3}, expected {simulated}");
        assert!(is > lambert(0.28));
    }
}

#[test]
fn trimmed_space_is_spare_space() {
    // A fifth of the capacity is given up and stays so.
    let flash = one_die(64, BLOCKS);
    let pages = (f64::from(BLOCKS * 64) / 1.10) as u32;
    let kept = pages / 5 * 4;
    let (mut map, mut chips) = (PageMap::new(&flash, pages, 4, false), Chips::new(&flash));
    map.fill(pages, &mut chips);
    (kept..pages).for_each(|page| map.trim(page, &mut chips));
    assert_eq!(chips.counters.trimmed_pages, u64::from(pages - kept));
    let mut random = SplitMix64(1);
    let mut write = |chips: &mut Chips| {
        for _ in 0..4 * kept {
            map.write((random.next() % u64::from(kept)) as u32, 0, chips);
        }
    };
    write(&mut chips);
    let before = chips.counters;
    write(&mut chips);
    let (is, expected) = (chips.counters.since(&before).write_amplification(), lambert(1.10 / 0.8 - 1.0));
    assert_eq!(chips.counters.host_bytes, 0, "the layers do not count the host's bytes");
    assert_eq!(is, 1.0);
    let counted = chips.counters.since(&before);
    let is = 1.0 + counted.gc_pages as f64 / counted.host_pages as f64;
    assert!((is / expected - 1.0).abs() < 0.04, "{is:.3}, expected {expected:.3}");
}

/// Returns the write amplification of FAST with units of `unit` pages, random writes over `units` of them and `logs`
/// logs.
fn fast(unit: u32, units: u32, logs: u32) -> f64 {
    let flash = one_die(unit, 1 << 20);
    let pages = units * unit;
    let mut layer = LogBlocks::new(&flash, pages, 1, logs - 1, 1);
    let mut chips = Chips::new(&flash);
    layer.fill(pages);
    let mut random = SplitMix64(1);
    let mut write = |writes: u32, chips: &mut Chips| {
        for _ in 0..writes {
            layer.write((random.next() % u64::from(pages)) as u32, true, 0, chips);
        }
    };
    write(3 * logs * unit, &mut chips);
    let before = chips.counters;
    write(20 * logs * unit, &mut chips);
    let counted = chips.counters.since(&before);
    assert!(counted.full_merges > 0 && counted.partial_merges > 0);
    1.0 + counted.gc_pages as f64 / counted.host_pages as f64
}

#[test]
fn log_blocks_amplify_random_writes_as_simulated() {
    for (unit, units, logs, simulated) in [
        (64, 32_768, 512, 33.07),
        (64, 4096, 512, 8.42),
        (64, 4096, 128, 22.58),
        (512, 4096, 10, 249.2),
        (512, 8, 10, 2.45),
    ] {
        let (is, lambda) = (fast(unit, units, logs), f64::from((logs - 1) * unit) / f64::from(units));
        println!("FAST, {unit} pages, {units} units, {logs} logs: {is:.2}, simulated {simulated}");
        assert!((is / simulated - 1.0).abs() < 0.03, "{unit}, {units}, {logs}: {is:.2}, expected {simulated}");
        let formula = 1.0 + f64::from(unit) / (1.0 + lambda);
        // A region that fits the logs pays for the sequential log all the same.
        assert!(units < 100 || (is / formula - 1.0).abs() < 0.05, "{is:.2}, formula {formula:.2}");
    }
}

#[test]
fn sequential_writes_turn_logs_into_data_blocks() {
    let flash = one_die(64, 1 << 20);
    let mut layer = LogBlocks::new(&flash, 64 * 64, 1, 9, 1);
    let mut chips = Chips::new(&flash);
    layer.fill(64 * 64);
    for page in (0..64 * 64).chain(0..64 * 64) {
        layer.write(page, true, 0, &mut chips);
    }
    let counters = chips.counters;
    assert_eq!((counters.gc_pages, counters.switch_merges, counters.erases), (0, 128, 128));
    assert_eq!((counters.partial_merges, counters.full_merges, counters.unit_switches), (0, 0, 127));
}

#[test]
fn a_stream_too_many_closes_the_one_extended_longest_ago() {
    let flash = one_die(64, 1 << 20);
    let mut layer = LogBlocks::new(&flash, 64 * 64, 2, 9, 1);
    let mut chips = Chips::new(&flash);
    layer.fill(64 * 64);
    for page in [0, 64, 1, 128] {
        layer.write(page, true, 0, &mut chips);
    }
    // The second stream had one page: 63 are copied.
    assert_eq!((chips.counters.partial_merges, chips.counters.gc_pages), (1, 63));
    // The first stream continues in order, the second does not.
    layer.write(2, true, 0, &mut chips);
    layer.write(65, true, 0, &mut chips);
    assert_eq!(layer.die_of(65), Some(0));
    assert_eq!((chips.counters.partial_merges, chips.counters.full_merges), (1, 0));
}

#[test]
fn what_holds_nothing_is_neither_read_nor_copied() {
    let flash = one_die(64, 1 << 20);
    let mut layer = LogBlocks::new(&flash, 64 * 64, 1, 1, 1);
    let mut chips = Chips::new(&flash);
    assert_eq!(layer.die_of(5), None);
    layer.fill(64 * 64);
    (0..60).for_each(|page| layer.trim(page, &mut chips));
    assert_eq!((layer.die_of(5), chips.counters.trimmed_pages), (None, 60));
    // The only random log is filled; another page evicts the first one, with a unit of which five pages hold data.
    layer.write(5, true, 0, &mut chips);
    for page in 65..128 {
        layer.write(page, false, 0, &mut chips);
    }
    layer.write(200, true, 0, &mut chips);
    assert_eq!((chips.counters.full_merges, chips.counters.gc_pages), (1, 5));
    layer.write(201, true, 0, &mut chips);
    assert_eq!((chips.counters.full_merges, chips.counters.gc_pages), (2, 5 + 64));
}

#[test]
fn newest_versions_are_found_wherever_they_are() {
    // Two dies tell places apart: a page's own, and its place in a log.
    let flash = FlashSpec { channels: 2, ..one_die(4, 1 << 20) };
    let mut layer = LogBlocks::new(&flash, 64, 1, 3, 1);
    let mut chips = Chips::new(&flash);
    layer.fill(64);
    assert_eq!(layer.die_of(5), Some(1));
    layer.write(5, true, 0, &mut chips);
    assert_eq!(layer.die_of(5), Some(0), "the first place of the first log");
    for page in 0..8 {
        layer.write(page, true, 0, &mut chips);
    }
    assert_eq!(layer.die_of(5), Some(1), "in order again");
}
