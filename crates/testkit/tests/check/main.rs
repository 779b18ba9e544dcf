//! The checker of moafs beside e2fsck, on damaged images: they agree on which images are damaged, and a repaired image
//! is clean for both.
//!
//! One difference is known: e2fsck guesses that a special file whose first pointer names a directory block was a
//! directory.
//!
//! The plain run takes a sample of seeds. `MOAFS_CHECK_SEEDS=A..B cargo test -p moafs-testkit --test check` runs
//! others; a failure prints `IMAGE:SEED`, and `MOAFS_CHECK=IMAGE:SEED` runs that one and prints the output of both
//! checkers. `MOAFS_CHECK_IMAGE=FILE` keeps its image.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckError, CheckOptions, Mode, Outcome};
use moafs_runtime::Timestamp;
use moafs_testkit::drive::{Driver, Tolerance};
use moafs_testkit::family::{self, Ext, Family, look_with};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::e2fsck;
use moafs_testkit::mutate::{Layout, Mutation, damaged, mutations};
use moafs_testkit::ops::{Generator, Limits};
use moafs_testkit::volume::OnDisk;

/// Seeds of the plain run.
const SAMPLE: Range<u64> = 0..150;
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

struct Golden {
    name: &'static str,
    disk: MemDisk,
    bytes: u64,
    layout: Layout,
}

fn golden<F: Family>() -> Vec<Golden> {
    let make = |geometry: Geometry| {
        let disk = Arc::new(F::make(&geometry)?);
        populate::<F>(&disk, u64::from(geometry.block_size));
        let disk = disk.snapshot();
        let layout = F::layout(&disk, &geometry);
        Some(Golden { name: geometry.name, disk, bytes: geometry.bytes(), layout })
    };
    family::geometries::<F>(F::DAMAGED).into_iter().filter_map(make).collect()
}

fn populate<F: Family>(disk: &Arc<MemDisk>, block: u64) {
    let mounter = F::mounter(0);
    let mount = OnDisk { mounter: &mounter, disk: disk.clone() };
    let mut driver = Driver::new(mount, Tolerance::default()).expect("a fresh volume mounts");
    let limits = Limits {
        block_size: block,
        file_bytes_max: 300 * block,
        total_bytes_max: 4 << 20,
        sparse_bytes_max: 80 << 20,
        nodes_max: 60,
        remounts: false,
        xattrs: true,
        symlink_bytes_max: 900,
        nanos: false,
    };
    let mut generator = Generator::new(4, limits);
    for _ in 0..400 {
        let op = generator.next(&driver.model);
        driver.step(&op).expect("the volume works while it is whole");
    }
    driver.unmount().expect("the volume unmounts");
}

/// Returns the seeds of this run.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("MOAFS_CHECK_SEEDS") else { return SAMPLE };
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn run<F: Family>(judge: impl Fn(&Golden, u64, &[Mutation], bool) -> Result<(), String>) {
    let golden = golden::<F>();
    if golden.is_empty() {
        return;
    }
    let one = std::env::var("MOAFS_CHECK").ok();
    let mut failures = Vec::new();
    let mut judge_seed = |image: &Golden, seed: u64, loud: bool| {
        let mutations = mutations(&image.layout, &image.disk, seed);
        if let Err(said) = judge(image, seed, &mutations, loud) {
            let words: Vec<String> = mutations.iter().map(ToString::to_string).collect();
            println!("MOAFS_CHECK={}:{seed}  {}\n  {said}", image.name, words.join("; "));
            failures.push(seed);
        }
    };
    match &one {
        Some(text) => {
            let (name, seed) = text.split_once(':').expect("IMAGE:SEED");
            let Some(image) = golden.iter().find(|golden| golden.name == name) else { return };
            judge_seed(image, seed.parse().expect("a number"), true);
        }
        None => seeds().for_each(|seed| judge_seed(&golden[seed as usize % golden.len()], seed, false)),
    }
    assert!(failures.is_empty(), "{} of {:?} failed, printed above", failures.len(), seeds());
}

fn keep_image(disk: &MemDisk) {
    if let Some(path) = std::env::var_os("MOAFS_CHECK_IMAGE") {
        disk.write_to(Path::new(&path)).expect("the image can be written");
    }
}

fn ext_check(disk: &MemDisk, mode: Mode) -> Result<Outcome, CheckError> {
    moafs_ext::check::check(disk, &CheckOptions { mode, force: true, superblock: None, now: NOW }, &mut |_| ())
}

fn texts(outcome: &Outcome) -> String {
    let lines = outcome.findings.iter().map(|found| {
        let left = if found.repaired { "" } else { " (left)" };
        format!("{}{left}", found.issue)
    });
    lines.collect::<Vec<_>>().join("\n    ")
}

/// Returns the exit code and all lines of e2fsck on a disk.
fn e2fsck_of(disk: &MemDisk) -> Option<(i32, String)> {
    look_with(disk, |image| e2fsck::run(image, e2fsck::Mode::Look)).unwrap().map(|verdict| (verdict.exit, verdict.text))
}

fn judge_ext(image: &Golden, _: u64, mutations: &[Mutation], loud: bool) -> Result<(), String> {
    let disk = damaged(&image.disk, image.bytes, mutations);
    keep_image(&disk);
    let Some((theirs, text)) = e2fsck_of(&disk) else { return Ok(()) };
    let looked = ext_check(&disk, Mode::No);
    if loud {
        println!("{text}\n{}", looked.as_ref().map_or_else(ToString::to_string, texts));
    }
    // A volume that moafs refuses to check is not called clean.
    let Ok(looked) = looked else { return Ok(()) };
    let ours = looked.exit_code() != 0;
    // The exit code is 0 if it only offers a repair: the resize inode, counts, orphans, flags of descriptors.
    let complains = theirs != 0 || text.contains("? no") || text.contains("without feature set");
    if (theirs != 0 && !ours) || (ours && !complains) {
        return Err(format!("ours {ours}, e2fsck {theirs}\n    {}\n{text}", texts(&looked)));
    }
    let repaired = match ext_check(&disk, Mode::Yes) {
        Ok(repaired) => repaired,
        Err(error) => return Err(format!("the repair cannot be done: {error}")),
    };
    if loud {
        println!("REPAIRED\n    {}", texts(&repaired));
    }
    let again = ext_check(&disk, Mode::No).map_err(|error| format!("after the repair: {error}"))?;
    let Some((theirs, text)) = e2fsck_of(&disk) else { return Ok(()) };
    if repaired.errors_left {
        return Ok(());
    }
    if !again.findings.is_empty() || theirs != 0 {
        let first = texts(&repaired);
        return Err(format!("after the repair e2fsck {theirs}\n    {}\n{text}\nfirst:\n    {first}", texts(&again)));
    }
    Ok(())
}

#[test]
fn the_ext_checker_agrees_with_e2fsck_and_heals() {
    run::<Ext>(judge_ext);
}
