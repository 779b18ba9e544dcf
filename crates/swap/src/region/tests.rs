//! Tests of regions over a disk in memory. Without a usable userfaultfd they print this and pass.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_runtime::Live;
use proptest::prelude::*;
use rustix::mm::MlockAllFlags;

use super::*;
use crate::options::{Placement, SwapOptions};

const PAGE_SECTORS: u64 = (PAGE_BYTES / SECTOR) as u64;
const WORDS: usize = PAGE_BYTES / size_of::<u64>();

fn swap_on(disk: SharedDisk, pages: u32) -> Arc<Swap> {
    let options = SwapOptions { placement: Placement::Traditional, neighbours: 15, ..SwapOptions::default() };
    Arc::new(Swap::open(None, Some(disk), pages, Live::new(), options).unwrap())
}

fn memory_disk(pages: u32) -> SharedDisk {
    Arc::new(MemDisk::new(u64::from(pages) * PAGE_SECTORS))
}

fn sizes(budget: u32, cluster: u32) -> Sizes {
    RegionOptions { budget_bytes: u64::from(budget) * PAGE_BYTES as u64, cluster_pages: cluster }
        .sizes(u32::MAX)
        .unwrap()
}

/// Makes a region; prints a message and returns `None` where regions are not possible.
fn region_of(swap: &Arc<Swap>, sizes: Sizes, scope: Scope) -> Option<Region> {
    match Region::with(Arc::clone(swap), sizes, scope) {
        Ok(region) => Some(region),
        Err(error @ (RegionError::NoUserfaultfd | RegionError::KernelTooOld { .. } | RegionError::NotPermitted)) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn region(pages: u32, budget: u32, cluster: u32) -> Option<Region> {
    region_of(&swap_on(memory_disk(pages), pages), sizes(budget, cluster), Scope::All)
}

/// A random number generator with the same numbers every time (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[test]
fn a_region_is_zeros_at_first_and_keeps_what_is_written() {
    let Some(mut region) = region(64, 8, 4) else { return };
    assert_eq!(region.len(), 64 * PAGE_BYTES);
    assert!(region.as_slice().iter().all(|byte| *byte == 0));
    let stats = region.stats();
    assert_eq!((stats.zero_fills, stats.pages_out, stats.pages_in), (64, 0, 0), "{stats:?}");
    let numbers = region.as_mut_slice_of::<f64>();
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = i as f64;
    }
    assert!(region.as_slice_of::<f64>().iter().enumerate().all(|(i, number)| *number == i as f64));
    let stats = region.stats();
    assert!(stats.resident <= 8 && stats.pages_out >= 64, "{stats:?}");
    assert_eq!(stats.page_in_errors + stats.page_out_errors + stats.host_errors + stats.tend_errors, 0);
}

#[test]
fn values_that_do_not_divide_a_page_fill_what_they_can() {
    let Some(mut region) = region(9, 8, 1) else { return };
    let whole = 9 * PAGE_BYTES / 12;
    assert_eq!(region.as_mut_slice_of::<[u32; 3]>().len(), whole);
    assert_eq!(region.as_slice_of::<[u32; 3]>().len(), whole);
}

#[test]
fn pages_that_were_only_read_leave_without_being_written() {
    let Some(mut region) = region(64, 16, 2) else { return };
    region.as_mut_slice().fill(7);
    region.flush().unwrap();
    let before = region.stats();
    assert_eq!(before.dirty, 0);
    for _ in 0..3 {
        assert!(region.as_slice().iter().all(|byte| *byte == 7));
    }
    let after = region.stats();
    assert_eq!(after.pages_out, before.pages_out);
    assert!(after.pages_in > before.pages_in);
}

#[test]
fn a_flush_leaves_pages_in_memory_and_a_write_after_it_counts() {
    let Some(mut region) = region(32, 16, 4) else { return };
    region.as_mut_slice()[..8 * PAGE_BYTES].fill(1);
    region.flush().unwrap();
    let stats = region.stats();
    assert_eq!((stats.resident, stats.dirty, stats.pages_out), (8, 0, 8));
    region.as_mut_slice()[0] = 2;
    assert_eq!(region.stats().dirty, 1);
    region.as_mut_slice()[8 * PAGE_BYTES..].fill(3);
    assert_eq!(region.as_slice()[..2], [2, 1]);
}

#[test]
fn neighbours_come_along_as_long_as_they_are_wanted() {
    let pages = 1024;
    let swap = swap_on(memory_disk(pages), pages);
    let Some(mut region) = region_of(&swap, sizes(256, 16), Scope::All) else { return };
    region.as_mut_slice().fill(1);
    region.flush().unwrap();
    let written = swap.status().counters;
    assert!(written.out_requests <= written.pages_out / 8, "{written:?}");

    let before = region.stats();
    for _ in 0..2 {
        assert!(region.as_slice().iter().all(|byte| *byte == 1));
    }
    let one_by_one = region.stats();
    let (asked, along) = (one_by_one.pages_in - before.pages_in, one_by_one.ahead - before.ahead);
    assert!(along >= 8 * asked, "{asked} asked for, {along} came along");
    assert!(one_by_one.ahead_used * 10 >= one_by_one.ahead * 9, "{one_by_one:?}");

    let mut random = Random(5);
    for _ in 0..3000 {
        assert_eq!(region.as_slice()[random.below(pages as usize) * PAGE_BYTES], 1);
    }
    let anywhere = region.stats();
    let (asked, along) = (anywhere.pages_in - one_by_one.pages_in, anywhere.ahead - one_by_one.ahead);
    assert!(along <= 4 * asked, "{asked} asked for, {along} came along");
}

#[test]
fn discarded_pages_are_zeros_and_nowhere() {
    let pages = 32;
    let swap = swap_on(memory_disk(pages), pages);
    let Some(mut region) = region_of(&swap, sizes(8, 1), Scope::All) else { return };
    region.as_mut_slice().fill(5);
    assert!(swap.is_out(PageNo(1)));
    region.discard(1..4 * PAGE_BYTES + 1);
    assert!((1..4).all(|page| !swap.is_out(PageNo(page))));
    let bytes = region.as_slice();
    assert!(bytes[..PAGE_BYTES].iter().all(|byte| *byte == 5));
    assert!(bytes[PAGE_BYTES..4 * PAGE_BYTES].iter().all(|byte| *byte == 0));
    assert!(bytes[4 * PAGE_BYTES..].iter().all(|byte| *byte == 5));
    region.discard(0..usize::MAX);
    assert_eq!((region.stats().resident, swap.status().used), (0, 0));
}

#[test]
fn the_swap_is_empty_after_a_region() {
    let swap = swap_on(memory_disk(64), 64);
    let Some(mut region) = region_of(&swap, sizes(8, 1), Scope::All) else { return };
    region.as_mut_slice().fill(1);
    assert!(swap.status().used > 0);
    drop(region);
    assert_eq!(swap.status().used, 0);
}

#[test]
fn budgets_that_one_instruction_could_exceed_are_refused() {
    let options = RegionOptions { budget_bytes: 7 * PAGE_BYTES as u64, ..RegionOptions::default() };
    let error = Region::new(swap_on(memory_disk(8), 8), options).unwrap_err();
    assert_eq!(error.to_string(), "a budget of 28672 bytes is too small: a region needs 32768");
}

#[test]
fn system_calls_may_be_given_absent_memory_where_the_scope_allows() {
    let pages = 16;
    for scope in [Scope::All, Scope::UserMode] {
        let Some(mut region) = region_of(&swap_on(memory_disk(pages), pages), sizes(8, 1), scope) else { return };
        region.as_mut_slice().fill(9);
        let (mut from, mut to) = std::io::pipe().unwrap();
        let mut write = |region: &Region| to.write(&region.as_slice()[..PAGE_BYTES]).map_err(|e| e.raw_os_error());
        if !region.serves_system_calls() {
            assert_eq!(write(&region), Err(Some(libc::EFAULT)));
            // A program that touches it first is served.
            assert_eq!(region.as_slice()[0], 9);
        }
        assert_eq!(write(&region), Ok(PAGE_BYTES));
        let mut bytes = vec![0; PAGE_BYTES];
        from.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 9));
    }
}

/// Makes one thread's random reads and writes over its part, checked against a plain vector.
fn check_part(part: &mut [u64], seed: u64, operations: usize, writes_percent: u64) {
    let mut random = Random(seed);
    let mut model = vec![0_u64; part.len()];
    let mut hot = 0;
    for _ in 0..operations {
        // Some runs, some places that come again, the rest anywhere.
        let at = match random.next() % 4 {
            0 => hot,
            1 => (hot + WORDS / 3) % part.len(),
            _ => random.below(part.len()),
        };
        if random.next().is_multiple_of(4) {
            hot = at;
        }
        if random.next() % 100 < writes_percent {
            model[at] = random.next();
            part[at] = model[at];
        } else {
            assert_eq!(part[at], model[at], "word {at}, seed {seed:#x}");
        }
    }
    assert_eq!(part, model, "at the end, seed {seed:#x}");
}

fn check_halves(region: &mut Region, seed: u64, operations: usize, writes_percent: u64) {
    let words = region.as_mut_slice_of::<u64>();
    let (left, right) = words.split_at_mut(words.len() / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| check_part(left, seed, operations, writes_percent));
        scope.spawn(|| check_part(right, !seed, operations, writes_percent));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_region_is_memory(
        seed: u64,
        budget in 8_u32..80,
        cluster in 1_u32..20,
        writes_percent in 0_u64..=100,
        user_mode: bool,
    ) {
        let pages = budget * 4;
        let swap = swap_on(memory_disk(pages), pages);
        let scope = if user_mode { Scope::UserMode } else { Scope::All };
        let Some(mut region) = region_of(&swap, sizes(budget, cluster), scope) else { return Ok(()) };
        check_halves(&mut region, seed, 4000, writes_percent);
        let stats = region.stats();
        prop_assert!(stats.resident <= u64::from(budget), "{:?}", stats);
        prop_assert_eq!(stats.page_in_errors + stats.page_out_errors + stats.host_errors + stats.tend_errors, 0);
    }
}

/// Runs threads that add to the same words, while pages leave under them and another thread flushes: every addition
/// must be there in the end.
#[test]
fn no_write_is_lost_when_pages_leave_under_it() {
    const THREADS: u64 = 2;
    const ADDITIONS: u64 = 20_000;
    let Some(region) = region(24, 8, 1) else { return };
    let words = region.len() / size_of::<AtomicU64>();
    // SAFETY: aligned, zeroed, and used only as atomics as long as these references live.
    let words = unsafe { std::slice::from_raw_parts(region.as_ptr().cast::<AtomicU64>().as_ptr(), words) };
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let adders = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..ADDITIONS {
                    let word = &words[random.below(24) * WORDS + random.below(4)];
                    // Read first: the page comes in clean, and the addition has to make it dirty.
                    std::hint::black_box(word.load(Ordering::Relaxed));
                    word.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let adders: Vec<_> = adders.collect();
        let (region, busy) = (&region, &busy);
        scope.spawn(move || {
            while busy.load(Ordering::Relaxed) {
                region.flush().unwrap();
                std::thread::yield_now();
            }
        });
        for adder in adders {
            adder.join().unwrap();
        }
        busy.store(false, Ordering::Relaxed);
    });
    let sum: u64 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
    assert_eq!(sum, THREADS * ADDITIONS, "{:?}", region.stats());
}

#[test]
fn pages_that_the_device_does_not_take_stay_and_leave_when_it_does() {
    let pages = 64;
    let rule = |when| vec![Rule::new(Victims::Writes(EVERYWHERE), when, Harm::Error)];
    let fault = Arc::new(Fault::new(memory_disk(pages), Live::new(), rule(When::Always)));
    let Some(mut region) = region_of(&swap_on(fault.clone(), pages), sizes(16, 2), Scope::All) else { return };
    region.as_mut_slice().fill(3);
    let stats = region.stats();
    assert_eq!((stats.resident, stats.dirty, stats.pages_out), (64, 64, 0), "{stats:?}");
    assert!(stats.page_out_errors > 0);
    assert!(matches!(region.flush(), Err(RegionError::Swap(_))));
    fault.set(Vec::new());
    region.flush().unwrap();
    assert!(region.as_slice().iter().all(|byte| *byte == 3));
    region.discard(0..PAGE_BYTES);
    assert_eq!(region.as_slice()[0], 0);
    let stats = region.stats();
    assert_eq!((stats.dirty, stats.resident <= 16), (0, true), "{stats:?}");
    assert!(region.as_slice()[PAGE_BYTES..].iter().all(|byte| *byte == 3));
}

#[test]
fn passing_write_errors_lose_nothing() {
    let pages = 64;
    let rules = vec![Rule::new(Victims::Writes(EVERYWHERE), When::EveryNth(3), Harm::Error)];
    let fault: SharedDisk = Arc::new(Fault::new(memory_disk(pages), Live::new(), rules));
    let Some(mut region) = region_of(&swap_on(fault, pages), sizes(16, 2), Scope::All) else { return };
    check_halves(&mut region, 11, 4000, 50);
    let stats = region.stats();
    assert!(stats.page_out_errors > 0 && stats.page_in_errors == 0, "{stats:?}");
}

/// Makes a region whose page 0 is out and cannot be read.
fn lost_page() -> Option<(Region, Arc<Fault>)> {
    let pages = 32;
    let fault = Arc::new(Fault::new(memory_disk(pages), Live::new(), Vec::new()));
    let mut region = region_of(&swap_on(fault.clone(), pages), sizes(8, 1), Scope::All)?;
    region.as_mut_slice().fill(1);
    fault.set(vec![Rule::new(Victims::Reads(EVERYWHERE), When::Always, Harm::Error)]);
    Some((region, fault))
}

#[test]
fn a_system_call_on_a_lost_page_fails_and_a_discard_finds_it_again() {
    let Some((mut region, fault)) = lost_page() else { return };
    let (_from, mut to) = std::io::pipe().unwrap();
    for _ in 0..2 {
        let error = to.write(&region.as_slice()[..1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
    assert!(region.stats().page_in_errors <= 1);
    fault.set(Vec::new());
    region.discard(0..PAGE_BYTES);
    assert_eq!((region.as_slice()[0], region.as_slice()[PAGE_BYTES]), (0, 1));
}

/// Runs `child` in a process of its own, whose exit status is its result; prints a message and returns `None` if it
/// found no userfaultfd. `name` is the calling test's.
fn in_a_process(name: &str, child: impl FnOnce() -> Option<u8>) -> Option<ExitStatus> {
    const CHILD: &str = "MOAFS_TEST_CHILD";
    const SKIPPED: i32 = 77;
    if std::env::var_os(CHILD).is_some() {
        std::process::exit(child().map_or(SKIPPED, i32::from));
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("region::tests::{name}"), "--nocapture"]).env(CHILD, "1");
    let ended = command.output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&ended.stderr));
    (ended.status.code() != Some(SKIPPED)).then_some(ended.status)
}

#[test]
fn touching_a_lost_page_is_sigbus() {
    let ended = in_a_process("touching_a_lost_page_is_sigbus", || {
        let (region, _) = lost_page()?;
        Some(region.as_slice()[0])
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended:?}");
}

#[test]
fn a_process_that_locks_its_memory_has_a_budget_all_the_same() {
    let ended = in_a_process("a_process_that_locks_its_memory_has_a_budget_all_the_same", || {
        if let Err(error) = rustix::mm::mlockall(MlockAllFlags::FUTURE) {
            eprintln!("SKIPPED: mlockall: {error}");
            return None;
        }
        let mut region = region(256, 16, 2)?;
        region.as_mut_slice().fill(1);
        let stats = region.stats();
        Some(u8::from(stats.zero_fills != 256 || stats.resident > 16 || stats.host_errors > 0))
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

#[test]
fn a_child_does_not_have_the_region() {
    let Some(region) = region(16, 8, 1) else { return };
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let from = maps.find(&format!("{:x}-", region.as_ptr().addr())).expect("the mapping is listed");
    let flags = maps[from..].lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    // The flags for memory that is not copied at a fork and not dumped.
    assert!(flags.contains(" dc ") && flags.contains(" dd "), "{flags}");
}

#[test]
fn a_neighbour_that_cannot_be_read_costs_nobody_a_page() {
    let pages = 256;
    let fault = Arc::new(Fault::new(memory_disk(pages), Live::new(), Vec::new()));
    let Some(mut region) = region_of(&swap_on(fault.clone(), pages), sizes(64, 8), Scope::All) else { return };
    region.as_mut_slice().fill(1);
    region.flush().unwrap();
    let bad = Victims::Reads(3 * PAGE_SECTORS..4 * PAGE_SECTORS);
    fault.set(vec![Rule::new(bad, When::Always, Harm::Error)]);
    for page in (0..pages as usize).filter(|page| *page != 3) {
        assert_eq!(region.as_slice()[page * PAGE_BYTES], 1);
    }
    assert_eq!(region.stats().page_in_errors, 0);
}

/// Prints figures only: `cargo test --release -p moafs-swap -- --ignored --nocapture a_million_faults`.
#[test]
#[ignore = "takes a while; prints figures"]
fn a_million_faults() {
    let pages = 4096;
    let Some(mut region) = region(pages, pages / 4, 16) else { return };
    let began = Instant::now();
    check_halves(&mut region, 42, 1_300_000, 50);
    let (stats, seconds) = (region.stats(), began.elapsed().as_secs_f64());
    let faults = stats.zero_fills + stats.pages_in + stats.idle_faults + stats.write_faults;
    println!("{faults} faults in {seconds:.1} s, {:.0} a second\n{stats:#?}", faults as f64 / seconds);
    assert!(faults >= 1_000_000, "only {faults} faults");
}

/// Compares the pages in for each of 1000 touches: the clock against the order of arrival.
#[test]
#[ignore = "prints figures"]
fn what_the_front_hand_is_worth() {
    let (pages, budget) = (1024, 256);
    for (name, hot_percent, writes_percent) in [
        ("anywhere", 0, 0),
        ("80 % in a tenth, read", 80, 0),
        ("80 % in a tenth, half written", 80, 50),
        ("95 % in a tenth, read", 95, 0),
    ] {
        for spread in [0, budget / 8, budget / 4, budget / 2, budget] {
            let sizes = Sizes { budget, spread, cluster: 1 };
            let Some(mut region) = region_of(&swap_on(memory_disk(pages), pages), sizes, Scope::All) else { return };
            region.as_mut_slice().fill(1);
            let (before, began) = (region.stats(), Instant::now());
            let mut random = Random(1);
            let touches = 200_000;
            for _ in 0..touches {
                let among = if random.next() % 100 < hot_percent { pages / 10 } else { pages };
                let at = random.below(among as usize) * PAGE_BYTES;
                if random.next() % 100 < writes_percent {
                    region.as_mut_slice()[at] = 2;
                } else {
                    std::hint::black_box(region.as_slice()[at]);
                }
            }
            let after = region.stats();
            let per = |count: u64| 1000.0 * count as f64 / f64::from(touches);
            println!(
                "{name:30} spread {spread:3}: {:5.1} in, {:5.1} out, {:5.1} idle faults for 1000 touches, {:.2} s",
                per(after.pages_in - before.pages_in),
                per(after.pages_out - before.pages_out),
                per(after.idle_faults - before.idle_faults),
                began.elapsed().as_secs_f64(),
            );
        }
    }
}
